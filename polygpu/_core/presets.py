"""Rings by name: the rings of lattice schemes, and rings over the fields of proof systems."""

from __future__ import annotations

from typing import Any

from ..errors import ParameterError
from .checks import checked_degree, shown
from .exact.primes import GOLDILOCKS

_SCHEMES: dict[str, dict[str, Any]] = {  # sources: FIPS 203, FIPS 204, Falcon 1.2, eprint 2019/040
    "ml-kem": {"n": 256, "moduli": 3329},
    "ml-dsa": {"n": 256, "moduli": 8380417},
    "falcon-512": {"n": 512, "moduli": 12289},
    "falcon-1024": {"n": 1024, "moduli": 12289},
    "nttru": {"n": 768, "moduli": 7681, "kind": "trinomial"},
}
_FIELDS = {
    "babybear": 15 * 2**27 + 1,
    "koalabear": 127 * 2**24 + 1,
    "goldilocks": GOLDILOCKS,
}


_ALIASES = {  # other names of presets; the error message for such a name suggests the preset
    "kyber": "ml-kem",
    "crystals-kyber": "ml-kem",
    "fips-203": "ml-kem",
    "dilithium": "ml-dsa",
    "crystals-dilithium": "ml-dsa",
    "fips-204": "ml-dsa",
    "falcon": "falcon-512",
    "fn-dsa": "falcon-512",
    "fn-dsa-512": "falcon-512",
    "fn-dsa-1024": "falcon-1024",
    "bb31": "babybear",
    "kb31": "koalabear",
    "gl64": "goldilocks",
}


def parameters(name: object, n: int | None) -> dict[str, Any]:
    """Return the arguments of Ring for a preset, as a dict.

    Args:
        name: name of the preset.
        n: degree, or None for the degree of the scheme. For presets that name a finite field, such as
            "babybear", None means 2^16.

    Raises:
        ParameterError: there is no preset of this name, or n is not the degree of the scheme.

    >>> parameters("ml-kem", None)
    {'n': 256, 'moduli': 3329}
    """
    if not isinstance(name, str) or name not in {**_SCHEMES, **_FIELDS}:
        raise ParameterError(
            f"name={shown(name)} must be one of {', '.join([*_SCHEMES, *_FIELDS])}.{_closest(name)}"
        )
    if name in _SCHEMES:
        found = _SCHEMES[name]
        if n is not None and checked_degree(n) != found["n"]:
            raise ParameterError(
                f"n={shown(n)} is not the degree of the preset {name!r}. Use n={found['n']}, or do not give "
                "n."
            )
        return dict(found)
    degree = 1 << 16 if n is None else n
    return {"n": degree, "moduli": _FIELDS[name], "kind": "cyclic", "root": "generator"}


def _closest(name: object) -> str:
    """Return a sentence that suggests the preset with the most similar name, or "" if none is similar."""
    if not isinstance(name, str):
        return ""
    from difflib import get_close_matches  # here, so that importing polygpu stays fast

    given = "-".join(name.lower().replace("_", "-").split())
    known = _ALIASES | {x: x for x in (*_SCHEMES, *_FIELDS)}
    stem = given[:64].rstrip("0123456789").rstrip("-")  # "kyber" for "kyber768": its sizes share one ring
    near = get_close_matches(given[:64], known, 1, 0.85)
    near = near or [stem] * (stem in known) or get_close_matches(given[:64], known, 1)
    return f" Did you mean {known[near[0]]!r}?" if near else ""
