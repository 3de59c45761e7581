"""Run the test suites of kyber-py and dilithium-py with polygpu in place of their transforms and products.

    pip install pycryptodome ecdsa
    python tests/downstream.py

The suites are those of the source archives on PyPI, which pip fetches. In each library this program replaces
the transform of a polynomial, its inverse and both products by calls of polygpu. All else is the library's.
Then it runs the library's tests, among them known answers of NIST. Exits with 1 if a test fails, or if a
replaced function for evaluated values was never called.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polygpu as pg

# The archive, the package, and the ring by whose definition the library orders its transform.
LIBRARIES = (
    ("kyber-py==1.2.0", "kyber_py", pg.Ring(256, 3329, root=(17,))),
    ("dilithium-py==1.5.1", "dilithium_py", pg.Ring(256, 8380417, root=(1753,))),
)


def replace(package: str, ring: pg.Ring, calls: Counter[str]) -> None:
    """Let a library transform and multiply by polygpu. calls: how often each replaced function was called."""
    module = importlib.import_module(f"{package}.polynomials.polynomials")
    q = ring.modulus

    def residues(polynomial: Any, is_ntt: bool) -> pg.Poly:
        """Return the value of a polynomial. Its coefficients may lie outside [0, q)."""
        data = [[c % q for c in polynomial.coeffs]]
        return ring.from_residues(data, domain="eval" if is_ntt else "coef")

    def ints(value: pg.Poly) -> list[int]:
        found: list[int] = value.data[0].tolist()
        return found

    def to_ntt(self: Any) -> Any:
        calls["transform"] += 1
        return self.parent(ints(residues(self, False).ntt()), is_ntt=True)

    def from_ntt(self: Any) -> Any:
        calls["inverse transform"] += 1
        return self.parent(ints(residues(self, True).intt()), is_ntt=False)

    def multiplied(is_ntt: bool) -> Callable[[Any, Any], list[int]]:
        def product(self: Any, other: Any) -> list[int]:
            calls["product of evaluated values" if is_ntt else "product"] += 1
            return ints(residues(self, is_ntt) * residues(other, is_ntt))

        return product

    module.Polynomial.to_ntt = to_ntt
    module.PolynomialNTT.from_ntt = from_ntt
    for cls, is_ntt, names in (
        (module.Polynomial, False, ("_schoolbook_multiplication",)),
        (module.PolynomialNTT, True, ("_ntt_multiplication", "ntt_multiplication")),
    ):
        for name in names:
            if hasattr(cls, name):
                setattr(cls, name, multiplied(is_ntt))


def run(requirement: str, package: str) -> bool:
    """Fetch a library, and run its tests in a process of their own. Return whether they pass."""
    with tempfile.TemporaryDirectory() as folder:
        fetch = ["pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder]
        subprocess.run([sys.executable, "-m", *fetch, requirement], check=True)
        (archive,) = Path(folder).glob("*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        root = archive.with_name(archive.name.removesuffix(".tar.gz"))
        program = [sys.executable, __file__, "--inside", package]
        return subprocess.run(program, cwd=root, check=False).returncode == 0


def inside(package: str, ring: pg.Ring) -> int:
    """Run the tests in the working folder, which is a library's source archive. Return the exit status."""
    sys.path.insert(0, "src")
    calls: Counter[str] = Counter()
    replace(package, ring, calls)
    status = int(pytest.main(["-q", "-p", "no:cacheprovider", "tests"]))
    print(f"{package}: {dict(calls)}")
    needed = {"transform", "inverse transform", "product of evaluated values"}
    return status or not needed <= calls.keys()


def main() -> int:
    """Run all libraries, or the one in the working folder. Return 0 if everything passes."""
    if "--inside" in sys.argv:
        (ring,) = (ring for _, package, ring in LIBRARIES if package == sys.argv[-1])
        return inside(sys.argv[-1], ring)
    passed = [run(requirement, package) for requirement, package, _ in LIBRARIES]
    return not all(passed)


if __name__ == "__main__":
    sys.exit(main())
