"""The sources of cuda/, and constants and enumerations that Python reads from them."""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache

from .. import cuda_sources


@cache
def text_of(file: str) -> str:
    """Return the text of a file of cuda/."""
    with open(os.path.join(cuda_sources(), file), encoding="utf-8") as source:
        return source.read()


def constant(file: str, name: str) -> int:
    """Return the value in `constexpr ... name = value;`, which is a number or a shift such as 1 << 5."""
    found = re.findall(rf"^constexpr \w+ {name} = (\d+)(?: << (\d+))?;", text_of(file), re.MULTILINE)
    if len(found) != 1:
        raise LookupError(f"cuda/{file} must have one constant {name}, but it has {len(found)}.")
    number, shift = found[0]
    return int(number) << int(shift or 0)


def enumeration(file: str, name: str) -> dict[str, int]:
    """Return the value of each member of an enum, by the member's name in lower case."""
    (members,) = re.findall(rf"^enum {name}(?: : \w+)? \{{ (.*?) \}};", text_of(file), re.MULTILINE)
    return {member.lower(): number for number, member in enumerate(members.split(", "))}


@cache
def waits(file: str) -> bool:
    """Return True if kernels of `file` call await_previous(), so that they may start early."""
    return "await_previous();" in text_of(file)


@cache
def digest() -> str:
    """Return a digest of all sources.

    Each source contains the digest, so that CuPy's cache of kernels notices edited headers.
    """
    made = hashlib.sha256()
    for name in sorted(os.listdir(cuda_sources())):
        if name.endswith((".cu", ".cuh")):
            made.update(f"{name}\0{text_of(name)}\0".encode())
    return made.hexdigest()
