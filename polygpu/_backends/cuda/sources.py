"""Constants and enumerations that stand in the sources of cuda/ alone, and which kernels wait."""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache

from .. import cuda_sources


@cache
def text_of(file: str) -> str:
    """Return a file of cuda/."""
    with open(os.path.join(cuda_sources(), file), encoding="utf-8") as source:
        return source.read()


def constant(file: str, name: str) -> int:
    """Return the value of `constexpr ... name = value;`, a number or a power of two as a shift."""
    found = re.findall(rf"^constexpr \w+ {name} = (\d+)(?: << (\d+))?;", text_of(file), re.MULTILINE)
    if len(found) != 1:
        raise LookupError(f"cuda/{file} has {len(found)} constants {name}")
    number, shift = found[0]
    return int(number) << int(shift or 0)


def enumeration(file: str, name: str) -> dict[str, int]:
    """Return the members of an enum, in lower case, and their numbers."""
    (members,) = re.findall(rf"^enum {name}(?: : \w+)? \{{ (.*?) \}};", text_of(file), re.MULTILINE)
    return {member.lower(): number for number, member in enumerate(members.split(", "))}


@cache
def waits(file: str) -> bool:
    """Return whether kernels of a file wait for earlier work themselves, and so may start early."""
    return "await_previous();" in text_of(file)


@cache
def digest() -> str:
    """Return a digest of all sources: CuPy's cache of compiled kernels does not notice edited headers."""
    made = hashlib.sha256()
    for name in sorted(os.listdir(cuda_sources())):
        if name.endswith((".cu", ".cuh")):
            made.update(f"{name}\0{text_of(name)}\0".encode())
    return made.hexdigest()
