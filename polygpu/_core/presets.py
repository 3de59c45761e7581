"""Named rings: those of lattice standards, and those over the fields of proof systems."""

from __future__ import annotations

from typing import Any

from ..errors import ParameterError
from .checks import checked_degree, shown
from .exact.primes import GOLDILOCKS

_SCHEMES = {  # FIPS 203, FIPS 204, Falcon specification 1.2
    "ml-kem": (256, 3329),
    "ml-dsa": (256, 8380417),
    "falcon-512": (512, 12289),
    "falcon-1024": (1024, 12289),
}
_FIELDS = {
    "babybear": 15 * 2**27 + 1,
    "koalabear": 127 * 2**24 + 1,
    "goldilocks": GOLDILOCKS,
}


_ALIASES = {  # older and other common names, for which messages suggest the preset
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
    """Return the arguments of Ring for a preset: degree and moduli, and for fields the kind and the root too.

    Raises:
        ParameterError: no such preset, or a degree other than the standard's.

    >>> parameters("ml-kem", None)
    {'n': 256, 'moduli': 3329}
    """
    if not isinstance(name, str) or name not in {**_SCHEMES, **_FIELDS}:
        raise ParameterError(
            f"name: {shown(name)} must be one of {', '.join([*_SCHEMES, *_FIELDS])}{_closest(name)}"
        )
    if name in _SCHEMES:
        degree, q = _SCHEMES[name]
        if n is not None and checked_degree(n) != degree:
            raise ParameterError(f"n: {shown(n)} does not fit {name!r}, whose degree is {degree}")
        return {"n": degree, "moduli": q}
    degree = 1 << 16 if n is None else n
    return {"n": degree, "moduli": _FIELDS[name], "kind": "cyclic", "root": "generator"}


def _closest(name: object) -> str:
    """Return the end of a message, which names the preset closest to a wrong name, or "" if none is close."""
    if not isinstance(name, str):
        return ""
    from difflib import get_close_matches  # here, so that importing polygpu stays fast

    given = "-".join(name.lower().replace("_", "-").split())
    known = _ALIASES | {x: x for x in (*_SCHEMES, *_FIELDS)}
    stem = given[:64].rstrip("0123456789").rstrip("-")  # "kyber768": all its parameter sets share one ring
    near = get_close_matches(given[:64], known, 1, 0.85)
    near = near or [stem] * (stem in known) or get_close_matches(given[:64], known, 1)
    return f"; did you mean {known[near[0]]!r}?" if near else ""
