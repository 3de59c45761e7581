"""Writes tests/data/seal with TenSEAL, whose module sealapi is SEAL: python tests/data/make_seal.py.

Keys are secret nowhere: parameters are far too small to hide anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tenseal as ts
import tenseal.sealapi as seal

TARGET = Path(__file__).parent / "seal"

# What is encrypted, known to tests/test_interop.py.
CKKS = ([0.5, -1.25, 3.0, 2.0], [4.0, 0.25, -1.0, 1.5])
BFV = [1, 2, 3, 4, -5]
BGV = "7x^3 + 1x^1 + 5"  # SEAL's hexadecimal coefficients


def save(name: str, value: Any) -> None:
    value.save(str(TARGET / f"{name}.seal"))


def context(scheme: Any, bits: list[int], plain: int = 0) -> tuple[Any, Any]:
    parameters = seal.EncryptionParameters(scheme)
    parameters.set_poly_modulus_degree(256)
    parameters.set_coeff_modulus(seal.CoeffModulus.Create(256, bits))
    if plain:
        parameters.set_plain_modulus(plain)
    found = seal.SEALContext(parameters, True, seal.SEC_LEVEL_TYPE.NONE)
    assert found.parameters_set(), found.parameters_error_message()
    return parameters, found


def ckks() -> None:
    parameters, ctx = context(seal.SCHEME_TYPE.CKKS, [40, 40, 41])
    keys = seal.KeyGenerator(ctx)
    public, relin, galois = seal.PublicKey(), seal.RelinKeys(), seal.GaloisKeys()
    keys.create_public_key(public)
    keys.create_relin_keys(relin)
    keys.create_galois_keys([3], galois)  # of X -> X^3, which rotates by one
    encoder, evaluator = seal.CKKSEncoder(ctx), seal.Evaluator(ctx)
    encryptor = seal.Encryptor(ctx, public)
    plains, ciphers = [], []
    for values in CKKS:
        plain, cipher = seal.Plaintext(), seal.Ciphertext(ctx)
        encoder.encode([complex(x) for x in values], 2.0**30, plain)
        encryptor.encrypt(plain, cipher)
        plains.append(plain)
        ciphers.append(cipher)
    product, relinearised, rescaled, rotated = (seal.Ciphertext(ctx) for _ in range(4))
    evaluator.multiply(*ciphers, product)
    evaluator.relinearize(product, relin, relinearised)
    evaluator.rescale_to_next(product, rescaled)
    evaluator.rotate_vector(ciphers[0], 1, galois, rotated)
    for name, value in {
        "parameters": parameters,
        "secret": keys.secret_key(),
        "public": public,
        "relin": relin,
        "galois": galois,
        "plain": plains[0],
        "a": ciphers[0],
        "b": ciphers[1],
        "product": product,
        "relinearised": relinearised,
        "rescaled": rescaled,
        "rotated": rotated,
        "seeded": seal.Encryptor(ctx, keys.secret_key()).encrypt_symmetric(plains[0]),
    }.items():
        save(f"ckks_{name}", value)


def bfv() -> None:
    """By TenSEAL's own classes, which ask for 128 bits of security."""
    ctx = ts.context(ts.SCHEME_TYPE.BFV, 2048, plain_modulus=12289, coeff_mod_bit_sizes=[27, 27])
    save("bfv_parameters", ctx.seal_context().data.key_context_data().parms())
    save("bfv_secret", ctx.secret_key().data)
    save("bfv_vector", ts.bfv_vector(ctx, BFV).ciphertext()[0])


def bgv() -> None:
    bgv = seal.SCHEME_TYPE(3)  # which sealapi has no name for
    parameters, ctx = context(bgv, [40, 40, 41], plain=7681)
    keys = seal.KeyGenerator(ctx)
    public, plain, cipher = seal.PublicKey(), seal.Plaintext(BGV), seal.Ciphertext(ctx)
    keys.create_public_key(public)
    seal.Encryptor(ctx, public).encrypt(plain, cipher)
    seal.Evaluator(ctx).mod_switch_to_next_inplace(cipher)
    save("bgv_parameters", parameters)
    save("bgv_secret", keys.secret_key())
    save("bgv_plain", plain)
    save("bgv_switched", cipher)


if __name__ == "__main__":
    TARGET.mkdir(exist_ok=True)
    ckks()
    bfv()
    bgv()
