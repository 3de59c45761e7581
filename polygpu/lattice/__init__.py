"""Operations of lattice cryptography: key switching, gadgets, products with gadget ciphertexts.

An RLWE ciphertext c consists of k polynomials c_0, ..., c_(k-1), its components. A value (`Poly`) of batch
shape (*batch, k) holds such ciphertexts. The phase of c is c_0 + c_1 * s_1 + ... + c_(k-1) * s_(k-1), where
the polynomials s_i are the secrets. The ciphertext hides m if its phase is m plus a small noise.

A key that switches from s' to s consists of ciphertexts under s that hide multiples of s'. A GGSW ciphertext
of m has batch shape (k, levels, k). Row (i, l) of it is a ciphertext of 0 with m * g_l added to component i.
The integers g_l are the weights of a gadget, see `gadget`.
"""

from .gadget import (
    Prepared,
    blind_rotate,
    cmux,
    decompose,
    external_product,
    gadget,
    prepare,
)
from .keys import SwitchKey, rotation_keys, switch_key
from .lwe import decompose_integers, extract, lwe_modulus_switch, lwe_switch
from .packing import embed, expand, pack, rgsw_from_rlwe, trace
from .products import add_constant, inner_product, multiply, tensor
from .secrets import ggsw, lwe_switch_key, multi_bit_key
from .security import max_log_q
from .switch import Hoisted, hoist, key_switch, rotate, rotate_many
from .transform import LinearTransform, transform

__all__ = [
    "Hoisted",
    "LinearTransform",
    "Prepared",
    "SwitchKey",
    "add_constant",
    "blind_rotate",
    "cmux",
    "decompose",
    "decompose_integers",
    "embed",
    "expand",
    "external_product",
    "extract",
    "gadget",
    "ggsw",
    "hoist",
    "inner_product",
    "key_switch",
    "lwe_modulus_switch",
    "lwe_switch",
    "lwe_switch_key",
    "max_log_q",
    "multi_bit_key",
    "multiply",
    "pack",
    "prepare",
    "rgsw_from_rlwe",
    "rotate",
    "rotate_many",
    "rotation_keys",
    "switch_key",
    "tensor",
    "trace",
    "transform",
]
