"""Blocked polynomials in Dask: results, files, lost workers, workers short of memory, workers with a card."""

from __future__ import annotations

import io
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from dask.callbacks import Callback
from dask.diagnostics import ProgressBar
from dask.distributed import Client, KilledWorker, LocalCluster, progress, wait
from dask.sizeof import sizeof
from devices import needs_compiler
from oracle import WITH_EVAL, draw, leaf_points, product, residues, ring, times, value_at

import polygpu as pg
import polygpu.dask as pd
from polygpu import Poly, Ring
from polygpu._core.exact.primes import GOLDILOCKS


@pytest.fixture(autouse=True, scope="module")
def _synchronous() -> Any:
    """Dask computes in this thread, unless a test says otherwise."""
    with dask.config.set(scheduler="synchronous"):
        yield


# Complete transforms, so that coefficients can be divided.
DIVIDED = {
    "30 bits": (64, 998244353, "negacyclic"),
    "31 bits cyclic": (256, 2013265921, "cyclic"),
    "60 bits": (256, pg.ntt_primes(256, bits=60), "negacyclic"),
    "60 bits cyclic": (64, pg.ntt_primes(64, bits=60, kind="cyclic"), "cyclic"),
    "Goldilocks": (128, GOLDILOCKS, "negacyclic"),
    "three limbs": (64, [q for bits in (30, 50, 60) for q in pg.ntt_primes(64, bits=bits)], "negacyclic"),
}
WHOLE = ["20 bits", "60 bits", "64 bits", "RNS of 3 words", "ML-KEM", "degree 12", "2^64", "2^128"]
divided = pytest.mark.parametrize("name", DIVIDED)
whole = pytest.mark.parametrize("name", WHOLE)


def ring_of(name: str) -> Ring:
    n, moduli, kind = DIVIDED[name]
    return Ring(n, moduli, kind=kind)  # type: ignore[arg-type]


def same(x: pd.BlockedPoly, expected: Poly) -> None:
    """Bit for bit, in blocks of the ring's dtype and in .data too."""
    found = x.compute()
    assert found.ring == expected.ring and found.domain == expected.domain == x.domain
    assert x.shape == expected.shape and x.ndim == expected.ndim and x.data.dtype == x.ring.dtype
    assert found.data.dtype == expected.data.dtype
    assert (found.data == expected.data).all() and found.data.shape == expected.data.shape
    assert (x.data.compute() == expected.data).all()


def cut(a: Poly, batch: int, parts: int = 1) -> pd.BlockedPoly:
    return pd.from_poly(a, chunks=(*(batch,) * a.ndim, -1, a.ring.n // parts))


class TestValues:
    @whole
    def test_operations_match_poly(self, name: str) -> None:
        R = ring(name)
        a, b = R.random((5, 3), seed=1), R.random((3,), seed=2)
        x, y = cut(a, 2), cut(b, 2)
        same(x, a)
        same(x + y, a + b)
        same(y - x, b - a)
        same(x * y, a * b)
        same(-x, -a)
        same(+x, a)
        same(3 * x - 1, 3 * a - 1)
        same(2 - x + 2**70, 2 - a + 2**70)
        same(x + b, a + b)
        same(b * x, b * a)
        same(x[1:4, None, 2], a[1:4, None, 2])
        same(x.rechunk((4, 3, -1, -1)), a)
        same(x.sum(), a.sum())
        same(x.sum(0), a.sum(0))
        same(x.sum((0, -1)), a.sum())
        same(x.scale_by([10, -1, 2**80]), a.scale_by([10, -1, 2**80]))
        assert pd.equal(x, a).all().compute()
        assert pd.equal(x, y[0]).compute().tolist() == pg.equal(a, b[0]).tolist()

    @pytest.mark.parametrize("name", ["20 bits", "RNS of 3 words", "ML-KEM"])
    def test_operations_in_the_evaluation_domain(self, name: str) -> None:
        R = ring(name)
        assert name in WITH_EVAL
        a, b = R.random((5,), seed=1), R.random((5,), seed=2)
        x, y = cut(a, 2), cut(b, 3)
        same(x.ntt(), a.ntt())
        same(x.ntt().intt(), a)
        same(x.ntt() * y, a.ntt() * b)
        same(x - y.ntt(), a - b.ntt())
        same(x.ntt() + 5, a.ntt() + 5)
        same(x.ntt().sum(), a.ntt().sum())
        assert pd.equal(x.ntt(), y).compute().tolist() == [False] * 5
        assert x.ntt().ntt().ntt().domain == "eval" and x.intt() is x

    @divided
    @pytest.mark.parametrize("parts", [2, 8])
    def test_operations_with_divided_coefficients(self, name: str, parts: int) -> None:
        R = ring_of(name)
        a, b = R.random((3,), seed=1), R.random((2, 1), seed=2)
        x, y = cut(a, 2, parts), cut(b, 1, parts)
        assert x._divided and x.data.numblocks == (2, 1, parts)
        same(x, a)
        same(x + y, a + b)
        same(x * y, a * b)
        same(x * x, a * a)
        same(x.ntt(), a.ntt())
        same(x.ntt().intt(), a)
        same(x.ntt() * y, a.ntt() * b)
        same(x - y.ntt(), a - b.ntt())
        same(-x * 3, a * -3)
        same(7 - x, 7 - a)
        same(x.ntt() + 2**66, a.ntt() + 2**66)
        same(x.sum(), a.sum())
        same(x.scale_by([1, -2, 3]), a.scale_by([1, -2, 3]))
        same(x[1], a[1])
        assert pd.equal(x, a).all().compute() and not pd.equal(x, y.ntt()).any().compute()

    @divided
    def test_operations_between_layouts(self, name: str) -> None:
        """Rows, columns, other numbers of parts, whole polynomials and local values."""
        R = ring_of(name)
        a, b = R.random((2,), seed=1), R.random((2,), seed=2)
        x = cut(a, 1, 4)
        rows = pd.from_array(da.from_array(b.data, chunks=(1, -1, R.n // 4)), R, chunks=(1, -1, R.n // 4))
        same(rows, b)
        same(x + rows, a + b)
        same(x * rows, a * b)
        same(rows + 3, b + 3)
        same(rows.ntt(), b.ntt())
        same(x + cut(b, 2, 2), a + b)
        same(x.ntt() * cut(b, 2, 8).ntt(), a.ntt() * b.ntt())
        same(x * cut(b, 2), a * b)
        same(cut(b, 2) * x, a * b)
        same(x * b, a * b)
        same(b - x, b - a)
        same(cut(a, 1).ntt() - x, a.ntt() - a)
        same(x.rechunk((2, -1, -1)), a)
        same(cut(a.ntt(), 1, 4).intt(), a)

    @divided
    def test_divided_products_match_python_ints(self, name: str) -> None:
        R = ring_of(name)
        a, b = draw(R, (2,), random.Random(1)), draw(R, (2,), random.Random(2))
        x, y = (pd.from_array(np.array(residues(R, v), R.dtype), R, chunks=(1, -1, R.n // 4)) for v in (a, b))
        assert (x * y).compute().to_bigints().tolist() == times(R, a, b).tolist()
        evaluated = x[0].ntt().data.compute()
        for limb, q in enumerate(R.moduli):
            points = leaf_points(R, limb)
            for k in (0, 1, R.n // 3, R.n - 1):
                assert int(evaluated[limb, k]) == value_at(a[0], points[k], q)

    @whole
    def test_batched_products_match_python_ints(self, name: str) -> None:
        R = ring(name)
        a, b = draw(R, (3,), random.Random(1)), draw(R, (3,), random.Random(2))
        x, y = (pd.from_array(np.array(residues(R, v), R.dtype), R, chunks=(2, -1, -1)) for v in (a, b))
        expected = [product(R, *rows) for rows in zip(a, b, strict=True)]
        assert (x * y).compute().to_bigints().tolist() == expected
        total = [sum(int(v) for v in column) % R.modulus for column in a.T]
        assert x.sum().compute().to_bigints().tolist() == total

    def test_matmul_of_blocked_polys(self) -> None:
        for R, parts in (
            (ring("ML-KEM"), 1),
            (ring("60 bits"), 1),
            (ring("2^64"), 1),
            (ring_of("60 bits"), 4),
        ):
            a, b = R.random((4, 5), seed=1), R.random((5, 3), seed=2)
            x, y = cut(a, 2, parts), cut(b, 2, parts)
            same(x @ y, a @ b)
            same(x @ b[:, 0], a @ b[:, 0])
            same(a[0] @ y, a[0] @ b)
            same(x[0] @ y[:, 1], a[0] @ b[:, 1])
            same(pd.einsum("ij,jk,...->k", x, y, a[0, 0]), pg.einsum("ij,jk,...->k", a, b, a[0, 0]))
            if R.has_eval:
                same(x.ntt() @ y, a.ntt() @ b)
        batches = R.random((2, 1, 3, 2), seed=3), R.random((3, 2, 2), seed=4)
        same(cut(batches[0], 1) @ cut(batches[1], 2), batches[0] @ batches[1])

    def test_operations_on_empty_batches(self) -> None:
        R = ring("20 bits")
        a = R.zeros((0, 3))
        same(pd.from_poly(a) + 1, a + 1)
        same(pd.from_poly(a).sum(0), a.sum(0))

    @whole
    def test_random_matches_ring_random(self, name: str) -> None:
        R = ring(name)
        same(pd.random(R, (5, 3), seed=7, chunks=(2, 2, -1, -1), start=2), R.random((5, 3), seed=7, start=2))
        same(pd.random(R, seed=b"seed"), R.random(seed=b"seed"))

    @divided
    def test_random_with_divided_coefficients(self, name: str) -> None:
        R = ring_of(name)
        same(pd.random(R, (3,), seed=7, chunks=(2, -1, R.n // 8), start=1), R.random((3,), seed=7, start=1))
        fresh = pd.random(R, chunks=(-1, R.n // 2))
        assert fresh.compute() == fresh.compute() != pd.random(R).compute()

    def test_chunks_given_as_sizes(self) -> None:
        R = ring_of("60 bits")  # 2 KiB a polynomial
        assert pd.random(R, 64, seed=1, chunks="16KiB").data.numblocks == (8, 1, 1)
        assert pd.random(R, 2, seed=1, chunks="512B").data.numblocks[1:] == (1, 4)
        with dask.config.set({"array.chunk-size": "1KiB"}):
            assert pd.from_poly(R.random(2, seed=1)).data.numblocks[1:] == (1, 2)
            assert pd.from_poly(ring("2^64").random(2, seed=1)).data.numblocks[1:] == (1, 1)

    def test_from_array_converts_dtypes(self) -> None:
        R = ring_of("30 bits")
        a = R.random(2, seed=1)
        for chunks in ((1, -1, -1), (1, -1, 16)):
            same(pd.from_array(a.data.astype(np.int64), R, chunks=chunks), a)
            with pytest.raises(pg.errors.NotCanonical):
                pd.from_array(a.data.astype(np.int64) - 2**31, R, chunks=chunks).compute()

    def test_inputs_are_not_changed(self) -> None:
        R = ring_of("60 bits")
        a = R.random(2, seed=1)
        data = a.data.copy()
        a.data.setflags(write=False)
        x = cut(a, 1, 4)
        (x.ntt() + 1).intt().compute()
        assert (a.data == data).all()

    def test_compute_on_the_reference_device(self) -> None:
        R = ring_of("30 bits")
        a = R.random(2, seed=1)
        with pg.device("reference"):
            found = (cut(a, 1, 4) * cut(a, 1, 4)).compute()
            assert found.device == "reference"
        assert found == a * a

    def test_compute_with_the_threaded_scheduler(self) -> None:
        R = ring_of("three limbs")
        a = R.random(4, seed=1)
        with dask.config.set(scheduler="threads"):
            same(cut(a, 1, 8) * cut(a, 2, 8), a * a)


class Arrays(Callback):  # type: ignore[misc]
    """Keeps what tasks give, under the synchronous scheduler."""

    def __init__(self) -> None:
        super().__init__(posttask=self.note)
        self.found: dict[str, list[Any]] = {}

    def note(self, key: Any, result: Any, *_: Any) -> None:
        name = str(key[0] if isinstance(key, tuple) else key).rpartition("-")[0].strip("_")
        if not name.startswith("original"):  # a file or an array, which tasks read
            self.found.setdefault(name, []).append(result)


class TestTasks:
    @pytest.mark.parametrize("optimize", [False, True])
    @pytest.mark.parametrize("parts", [1, 4])
    def test_task_results_are_arrays_that_dask_can_spill(
        self, tmp_path: Any, optimize: bool, parts: int
    ) -> None:
        R = ring_of("three limbs")
        a, chunks = R.random((4, 4), seed=1), (2, 2, -1, R.n // parts)
        np.save(tmp_path / "a.npy", a.data)
        zarr.create_array(tmp_path / "a.zarr", data=a.data.astype(np.int64))
        x, y = pd.load(tmp_path / "a.npy", R, chunks=chunks), pd.random(R, (4, 4), seed=2, chunks=chunks)
        wide = pd.load(tmp_path / "a.zarr", R, chunks=chunks)
        values = [x * y, (x.ntt() + y).intt(), x @ y, (-x).sum(0) - 5, 3 * wide, x[0, 1:3]]
        values += [x.scale_by([1, -2, 3, 4]), x.rechunk((4, 1, -1, -1)), wide.ntt()]
        with Arrays() as arrays:
            for value in values:
                value.compute(optimize_graph=optimize)
                value.data.compute(optimize_graph=optimize)
        assert len(arrays.found) > 10
        if parts > 1 and not optimize:
            assert {"piece", "forward_columns", "product_rows", "inverse_columns"} <= {*arrays.found}
        for name, results in arrays.found.items():
            for found in results:
                assert type(found) is np.ndarray, name
                owner = found
                while owner.base is not None:
                    owner = owner.base
                # A view keeps the whole array of which it shows a part, and Dask counts the part alone.
                assert type(owner) is np.ndarray and owner.nbytes <= 2 * found.nbytes, name
                assert sizeof(found) >= found.nbytes, name
                again = pickle.loads(pickle.dumps(found, protocol=5))
                assert again.dtype == found.dtype and (again == found).all(), name

    @pytest.mark.parametrize("call", ["file[key]", "file[key] = np.ones((1, 2**10, 2**8), np.uint64)"])
    def test_load_maps_a_file_in_parts(self, tmp_path: Any, call: str) -> None:
        """Dask counts mapped pages as process memory, so a block of columns must not map the whole file."""
        np.lib.format.open_memmap(tmp_path / "a.npy", "w+", np.uint64, (1, 2**25))
        code = f"""
import resource
from pathlib import Path
import numpy as np
import polygpu.dask as pd
file, key = pd._NpyFile(Path({str(tmp_path / "a.npy")!r}), (1, 2**10, 2**15)), np.s_[:, :, 256:512]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
{call}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert int(done.stdout) < 80 << 10  # KiB; the file has 256 MiB, the block 2

    def test_slices_of_a_mapped_file(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        expected = np.arange(4 * 6 * 10).reshape(4, 6, 10)
        keys: list[Any] = [np.s_[:], np.s_[1:3, :, 2:5], np.s_[2], np.s_[..., ::-1], np.s_[::2, 3, 1:9:3]]
        keys += [np.s_[:, [0, 4]], np.s_[3, 5, 9], np.s_[:0], np.s_[:, None, 2:]]
        for window in (1, 100, 500, 1 << 25):
            monkeypatch.setattr(pd, "_WINDOW", window)
            for order in ("C", "F"):
                np.save(tmp_path / "a.npy", np.asarray(expected, order=order))
                for key in keys:
                    found = pd._NpyFile(tmp_path / "a.npy")[key]
                    assert type(found) is np.ndarray and (found == expected[key]).all()
                    assert found.shape == expected[key].shape and found.dtype == expected.dtype
                written = expected.copy()
                for key in keys[:5]:
                    written[key] = -written[key]
                    pd._NpyFile(tmp_path / "a.npy")[key] = written[key]
                    assert (np.load(tmp_path / "a.npy") == written).all()


class TestCollection:
    def test_blocked_poly_is_a_dask_collection(self) -> None:
        R = ring_of("60 bits")
        a = R.random(3, seed=1)
        x = cut(a, 2, 4)
        assert dask.is_dask_collection(x)
        one, two = dask.compute(x * x, {"sum": x.sum()})
        assert one == a * a and two["sum"] == a.sum()
        for kept in ((x * x).persist(), dask.persist(x * x)[0], dask.optimize(x * x)[0]):
            assert isinstance(kept, pd.BlockedPoly)
            same(kept + 1, a * a + 1)
        assert dask.base.tokenize(x) == dask.base.tokenize(x) != dask.base.tokenize(-x)
        assert repr(x).startswith("BlockedPoly(Ring(256, ") and repr(x).endswith("shape=(3,), blocks=8)")

    def test_progress_bar_of_dask(self) -> None:
        R, out = ring_of("60 bits"), io.StringIO()
        a = R.random(4, seed=1)
        with ProgressBar(out=out), dask.config.set(scheduler="threads"):
            assert (cut(a, 1, 4) * cut(a, 1, 4)).compute() == a * a
        assert "100% Completed" in out.getvalue()

    def test_product_takes_three_exchanges(self) -> None:
        R = ring_of("60 bits")
        x, y = (cut(R.random(seed=i), 1, 8) for i in (1, 2))
        graph = dask.optimize(x * y)[0].__dask_graph__()
        names = [str(key[0]) for key in dict(graph) if isinstance(key, tuple)]
        assert sum(name.startswith("piece") for name in names) == 3 * 8 * 8
        # Rows of both operands, their product and its way back are one task a block.
        assert sum("rows" in name for name in names) == 8

    def test_import_of_polygpu_does_not_import_dask(self) -> None:
        code = "import sys, polygpu; assert not {'dask', 'distributed', 'zarr'} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_import_without_dask_raises(self) -> None:
        code = "import sys; sys.modules['dask'] = None; import polygpu.dask"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode and 'pip install "polygpu[dask]"' in done.stderr


class TestErrors:
    R = Ring(16, 97)

    def test_operations_raise_for_other_rings(self) -> None:
        x = pd.from_poly(self.R([1]))
        other = Ring(16, 193)
        for f in (
            lambda: x + other([1]),
            lambda: x * pd.from_poly(other([1])),
            lambda: pd.equal(x, other([1])),
        ):
            with pytest.raises(pg.RingMismatch, match="different rings"):
                f()
        with pytest.raises(pg.RingMismatch, match="must be a Poly"):
            pd.from_poly(3)  # type: ignore[arg-type]
        with pytest.raises(pg.RingMismatch, match="One of a and b must be a BlockedPoly"):
            pd.equal(self.R([1]), self.R([1]))

    def test_operations_raise_for_invalid_operands(self) -> None:
        x = pd.from_poly(self.R.random(3, seed=1))
        for bad in (1.5, True, "1"):
            for f in (lambda b: x + b, lambda b: b - x, lambda b: x * b):
                with pytest.raises(pg.errors.NotAnInteger, match="operand"):
                    f(bad)
        for array in (np.ones(3, np.int64), da.ones(3, dtype=np.int64)):
            for f in (lambda b: x + b, lambda b: b - x, lambda b: x * b):
                with pytest.raises(
                    pg.errors.CoefficientError, match=r"must be a Poly or an int|is not a constant"
                ):
                    f(array)
        with pytest.raises(pg.ParameterError, match="do not broadcast"):
            x + self.R.random(2, seed=1)
        with pytest.raises(pg.ParameterError, match="does not broadcast"):
            x.scale_by([1, 2])
        with pytest.raises(pg.ParameterError, match="axis"):
            x.sum(1)
        with pytest.raises(pg.ParameterError, match="no operands"):
            pd.einsum("")
        for f in (lambda: x == x, lambda: x != x, lambda: bool(x)):
            with pytest.raises(TypeError, match=r"polygpu\.dask\.equal"):
                f()
        with pytest.raises(pg.NotNTTFriendly):
            pd.from_poly(Ring(8, 15)([1])).ntt()

    def test_from_array_raises_for_invalid_arrays(self) -> None:
        data = np.zeros((3, 1, 16), np.uint32)
        with pytest.raises(pg.ParameterError, match="must end in"):
            pd.from_array(data[..., :8], self.R)
        with pytest.raises(pg.errors.CoefficientError, match="float64"):
            pd.from_array(data.astype(float), self.R)
        with pytest.raises(pg.errors.DomainError):
            pd.from_array(data, self.R, domain="values")  # type: ignore[arg-type]
        with pytest.raises(pg.ParameterError, match="does not fit"):
            pd.from_array(data, self.R, chunks=(1, 1))
        for parts in (8, (8, 4, 4), 5):  # 8: parts of 2, too many for n = 16; unequal parts; no divisor
            with pytest.raises(pg.ParameterError, match="parts must be equal"):
                pd.from_array(data, self.R, chunks=(1, 1, 2 if parts == 8 else parts))
        with pytest.raises(pg.ParameterError, match="rows"):
            pd.from_array(np.zeros((2, 16), np.uint32), Ring(16, [97, 193]), chunks=(1, -1))
        for R in (Ring(16, 41), Ring(12, 97), Ring(16, 10**9)):
            with pytest.raises(pg.ParameterError, match="a complete transform modulo"):
                pd.from_array(np.zeros((1, R.n), np.uint32), R, chunks=(-1, R.n // 2))


class TestFiles:
    @pytest.mark.parametrize("ending", ["npy", "zarr"])
    @pytest.mark.parametrize("name", ["three limbs", "30 bits", "60 bits cyclic"])
    def test_save_load_round_trip(self, tmp_path: Any, ending: str, name: str) -> None:
        R = ring_of(name)
        a = R.random((5,), seed=1)
        for parts in (1, 4):
            for domain in ("coef", "eval"):
                path = tmp_path / f"{parts}{domain}.{ending}"
                value = a.ntt() if domain == "eval" else a
                cut(value, 2, parts).save(path)
                given = {"ring": R, "domain": domain} if ending == "npy" else {}
                same(pd.load(path, **given), value)  # type: ignore[arg-type]
                same(pd.load(path, **given, chunks=(3, -1, -1)) * a, value * a)  # type: ignore[arg-type]
                same(pd.load(path, **given, chunks=(3, -1, R.n // 8)) * a, value * a)  # type: ignore[arg-type]
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
            f"{parts}{domain}.{ending}" for parts in (1, 4) for domain in ("coef", "eval")
        )

    def test_saved_files_are_read_by_numpy_and_zarr(self, tmp_path: Any) -> None:
        R = Ring(16, 97, root=[x for x in range(97) if pow(x, 16, 97) == 96][1])
        a = R.random((4,), seed=1)
        cut(a, 3, 2).save(tmp_path / "a.npy")
        assert (np.load(tmp_path / "a.npy") == a.data).all()
        cut(a, 3, 2).save(tmp_path / "a.zarr")
        found = zarr.open_array(tmp_path / "a.zarr", mode="r")
        assert (found[:] == a.data).all() and found.attrs["polygpu"]["moduli"] == ["97"]
        assert pd.load(tmp_path / "a.zarr").ring == R
        plain = zarr.create_array(tmp_path / "b.zarr", data=a.data)
        assert plain.shape == (4, 1, 16)
        same(pd.load(tmp_path / "b.zarr", R), a)

    def test_save_load_with_wide_moduli(self, tmp_path: Any) -> None:
        R = ring("wide prime, 100 bits")
        a = R.random((3,), seed=1)
        cut(a, 2).save(tmp_path / "a.zarr")
        same(pd.load(tmp_path / "a.zarr"), a)

    @pytest.mark.parametrize("ending", ["npy", "zarr"])
    def test_interrupted_save_leaves_no_file(self, tmp_path: Any, ending: str) -> None:
        R = ring_of("60 bits")

        def block(x: Any, block_id: Any = None) -> Any:
            if block_id == (3, 0, 0):
                raise KeyboardInterrupt
            return x

        data = da.zeros((4, 1, R.n), dtype=R.dtype, chunks=(1, 1, -1))
        x = pd.from_array(da.map_blocks(block, data, dtype=R.dtype, meta=data._meta), R, chunks=(1, 1, -1))
        with pytest.raises(KeyboardInterrupt):
            x.save(tmp_path / f"a.{ending}")
        assert not list(tmp_path.iterdir())

    def test_save_and_load_errors(self, tmp_path: Any) -> None:
        R = ring_of("60 bits")
        x = pd.from_poly(R([1]))
        with pytest.raises(pg.ParameterError, match=r"must end in \.npy or \.zarr"):
            x.save(tmp_path / "a.txt")
        with pytest.raises(pg.ParameterError, match=r"must end in \.npy or \.zarr"):
            pd.load(tmp_path / "a.txt")
        for ending in ("npy", "zarr"):
            x.save(tmp_path / f"a.{ending}")
            with pytest.raises(pg.errors.OutputError, match="exists"):
                (x + 1).save(tmp_path / f"a.{ending}")
        with pytest.raises(pg.ParameterError, match="does not name the ring"):
            pd.load(tmp_path / "a.npy")
        with pytest.raises(pg.RingMismatch, match="holds values of"):
            pd.load(tmp_path / "a.zarr", Ring(256, 97))
        with pytest.raises(FileNotFoundError):
            x.save(tmp_path / "missing" / "a.npy")
        with pytest.raises(FileNotFoundError):
            pd.load(tmp_path / "b.npy", R)


@contextmanager
def two_processes(config: dict[str, Any], **options: Any) -> Iterator[Client]:
    """A cluster of two processes, of one thread each."""
    with (
        # A worker that comes back is killed again: Dask is not to give it up.
        dask.config.set({"scheduler": None, "distributed.deploy.lost-worker-timeout": "1h", **config}),
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=":0",
            env={"POLYGPU_NUM_THREADS": "1"},
            silence_logs=60,
            **options,
        ) as cluster,
        Client(cluster) as found,
    ):
        yield found


@pytest.fixture(scope="module")
def client() -> Any:
    """Two processes."""
    with two_processes({}) as found:
        yield found


def slow(x: Any, R: Ring, parts: int) -> pd.BlockedPoly:
    """A divided value whose coefficients take a while to come."""

    def late(block: Any) -> Any:
        time.sleep(0.05)
        return block

    blocks = da.from_array(x, chunks=(*x.shape[:-1], R.n // parts), name=False)
    return pd.from_array(
        da.map_blocks(late, blocks, dtype=R.dtype, meta=blocks._meta), R, domain="coef", chunks=blocks.chunks
    )


class TestProcesses:
    R = Ring(2**12, pg.ntt_primes(2**12, bits=60))

    def test_results_and_files_on_a_cluster(self, client: Any, tmp_path: Any) -> None:
        a, b = self.R.random(3, seed=1), self.R.random(3, seed=2)
        x = pd.random(self.R, 3, seed=1, chunks=(2, -1, 2**10))
        same(x, a)
        same(x * b, a * b)
        one, two = dask.compute(x * b, x.sum())
        assert one == a * b and two == a.sum()
        for ending in ("npy", "zarr"):
            (x * b).save(tmp_path / f"c.{ending}")
            same(pd.load(tmp_path / f"c.{ending}", self.R), a * b)
        kept = x.persist()
        wait(kept)
        same(kept @ b, a @ b)

    def test_progress_on_a_cluster(self, client: Any, capsys: pytest.CaptureFixture[str]) -> None:
        a = self.R.random(4, seed=1)
        x = (cut(a, 1, 4) * cut(a, 1, 4)).persist()
        progress(x, notebook=False)
        assert "100% Completed" in capsys.readouterr().out
        same(x, a * a)

    @pytest.mark.parametrize("after", [0.1, 0.4, 0.7])
    def test_product_survives_a_killed_worker(self, client: Any, after: float) -> None:
        a, b = self.R.random(seed=1), self.R.random(seed=int(100 * after))
        client.wait_for_workers(2, timeout=20)
        workers = list(client.run(os.getpid).values())
        c = (slow(a.data, self.R, 8) * slow(b.data, self.R, 8)).persist()
        time.sleep(after)
        os.kill(workers[0], signal.SIGKILL)
        assert c.compute() == a * b


@pytest.fixture(scope="class")
def small(tmp_path_factory: Any) -> Any:
    """Two processes that may take 256 MiB each; at rest one takes 100.

    The first process that takes more ends the work. Blocks are spilled beyond 38 MiB of results, so that the
    product below reaches 185 MiB and Dask ends a process at 243.
    """
    config = {"distributed.scheduler.allowed-failures": 0, "distributed.worker.memory.target": 0.15}
    folder = str(tmp_path_factory.mktemp("workers"))
    with two_processes(config, memory_limit="256MiB", local_directory=folder) as found:
        yield found


def spilled(client: Any) -> int:
    """Bytes that workers have written to disk since they began."""

    def written(dask_worker: Any) -> int:
        metrics = dask_worker.data.cumulative_metrics
        return sum(n for label, n in metrics.items() if label == ("disk-write", "bytes"))

    return int(sum(client.run(written).values()))


class TestMemory:
    LIMIT = 256 << 20
    R = Ring(2**15, pg.ntt_primes(2**15, bits=60))  # 256 KiB a polynomial

    def test_persisted_blocks_are_spilled(self, small: Any) -> None:
        small.wait_for_workers(2, timeout=20)
        count, before = 2200, spilled(small)
        x = pd.random(self.R, count, seed=1, chunks=(16, -1, -1))
        kept = x.persist()
        total = kept.sum().compute()
        limits = [worker["memory_limit"] for worker in small.scheduler_info()["workers"].values()]
        assert limits == [self.LIMIT] * 2 and kept.data.nbytes > sum(limits)
        assert spilled(small) - before > kept.data.nbytes - sum(limits)
        parts = [self.R.random(100, seed=1, start=first).sum() for first in range(0, count, 100)]
        assert total == pg.stack(parts).sum()

    def test_product_larger_than_worker_memory_spills(self, small: Any, tmp_path: Any) -> None:
        small.wait_for_workers(2, timeout=20)
        n, before = 2**25, spilled(small)
        R = Ring(n, pg.ntt_primes(n, bits=60))
        a = R.random(seed=1)
        np.save(tmp_path / "a.npy", a.data)
        assert os.path.getsize(tmp_path / "a.npy") > self.LIMIT
        x = pd.load(tmp_path / "a.npy", R, chunks=(-1, n // 32))
        x.ntt().save(tmp_path / "b.npy")
        assert spilled(small) > before
        assert (np.load(tmp_path / "b.npy", mmap_mode="r") == a.ntt().data).all()

    def test_block_larger_than_worker_memory_raises(self, small: Any, tmp_path: Any) -> None:
        large = pd.random(self.R, (3, 1100), seed=1, chunks=(1, -1, -1, -1))
        calls: list[Callable[[], Any]] = [
            large.compute,
            lambda: large.sum().compute(scheduler=small),
            (large + 1).persist,
            lambda: large.sum().save(tmp_path / "a.npy"),
            lambda: large.sum().save(tmp_path / "a.zarr"),
        ]
        start = time.monotonic()
        for call in calls:
            with pytest.raises(pg.errors.OutOfHostMemory) as caught:
                call()
            for part in ("block needs 275.00 MiB", "256.00 MiB of memory (memory_limit)", 'chunks="25MiB"'):
                assert part in str(caught.value)
        assert time.monotonic() - start < 10 and not list(tmp_path.iterdir())

    def test_slices_of_a_block_larger_than_worker_memory(self, small: Any, tmp_path: Any) -> None:
        shape = 1100, self.R.rows, self.R.n
        np.lib.format.open_memmap(tmp_path / "a.npy", "w+", self.R.dtype, shape)[7] = 1
        x = pd.load(tmp_path / "a.npy", self.R, chunks=(-1, -1, -1))
        assert x[6:9].sum().compute() == self.R([1] * self.R.n)

    def test_task_that_exceeds_worker_memory_raises(self, small: Any) -> None:
        small.wait_for_workers(2, timeout=20)
        x = pd.random(self.R, 960, seed=1, chunks=(-1, -1, -1))
        start = time.monotonic()
        with pytest.raises(pg.errors.OutOfHostMemory) as caught:
            x.sum().compute()
        for part in ("of up to 240.00 MiB", "a worker of 256.00 MiB (memory_limit)", 'chunks="25MiB"'):
            assert part in str(caught.value)
        assert isinstance(caught.value.__cause__, KilledWorker) and time.monotonic() - start < 30

    def test_worker_killed_for_another_reason_raises_the_dask_error(self, small: Any) -> None:
        small.wait_for_workers(2, timeout=20)

        def end(block: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)
            return block

        data = da.zeros((1, self.R.n), dtype=self.R.dtype, chunks=-1)
        ended = da.map_blocks(end, data, dtype=data.dtype, meta=data._meta)
        with pytest.raises(KilledWorker):
            pd.from_array(ended, self.R).compute()

    def test_paused_workers_raise(self, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """A worker above 80 % of its memory starts no task, and Dask cannot spill what it holds here."""
        small.wait_for_workers(2, timeout=20)
        monkeypatch.setattr(pd, "_LOOK", 0.3)
        monkeypatch.setattr(pd, "_PATIENCE", 2.0)

        def hold(dask_worker: Any) -> None:
            held = dask_worker.monitor.get_process_memory()
            dask_worker.held = np.ones(int(0.88 * dask_worker.memory_manager.memory_limit) - held, np.uint8)

        def release(dask_worker: Any) -> None:
            del dask_worker.held

        x = pd.random(self.R, 64, seed=1, chunks=(4, -1, -1))
        small.run(hold)
        try:
            time.sleep(0.5)
            start = time.monotonic()
            with pytest.raises(pg.errors.OutOfHostMemory) as caught:
                x.sum().compute()
            assert time.monotonic() - start < 30
        finally:
            small.run(release)
        for part in (
            "All workers are paused",
            "of its 256.00 MiB (memory_limit)",
            "the largest block has 1.00 MiB",
        ):
            assert part in str(caught.value)
        assert x.sum().compute() == self.R.random(64, seed=1).sum()

    def test_compute_within_a_task(self, small: Any) -> None:
        """A task that computes gives its slot to the tasks for which it waits."""
        small.wait_for_workers(2, timeout=20)
        R = self.R
        found = small.map(
            lambda seed: pd.random(R, 4, seed=seed, chunks=(2, -1, -1)).sum().compute(), range(3)
        )
        assert small.gather(found) == [R.random(4, seed=seed).sum() for seed in range(3)]


CARD = """
from devices import simulated
from polygpu._backends import cuda

card, launched = simulated(), set()

def dask_setup(worker):
    card.__enter__()
    worker.launched, kernel = launched, cuda.CudaBackend._kernel

    def noted(self, launch):
        launched.add(launch.kernel.partition("<")[0])
        return kernel(self, launch)

    cuda.CudaBackend._kernel = noted

def dask_teardown(worker):
    card.__exit__(None, None, None)
"""


@needs_compiler
def test_worker_with_a_card_computes_on_it() -> None:
    """POLYGPU_DEVICE selects a simulated card."""
    R = ring_of("30 bits")
    a, b = R.random((2, 3), seed=1), R.random((3,), seed=2)
    with (
        dask.config.set({"scheduler": None}),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address=":0",
            env={"POLYGPU_NUM_THREADS": "1", "POLYGPU_DEVICE": "cuda:0"},
            preload=CARD,
            silence_logs=60,
        ) as cluster,
        Client(cluster) as client,
    ):

        def taken(dask_worker: Any) -> set[str]:
            """The kernels that were launched there since it was last asked."""
            names = {*dask_worker.launched}
            dask_worker.launched.clear()
            return names

        def launched() -> set[str]:
            (names,) = client.run(taken).values()
            return {*names}

        assert not launched()
        assert (pd.random(R, (2, 3), seed=1, chunks=(1, 2, -1, -1)) * cut(b, 2)).compute() == a * b
        assert {"uniform", "ntt_product"} <= launched()
        kept = (cut(a, 2, 4) * cut(b, 2, 4)).persist()
        wait(kept)
        assert {"ntt_forward", "scale_by_powers", "pointwise", "ntt_inverse"} <= launched()
        (types,) = client.run(lambda dask_worker: {type(x) for x in dask_worker.data.values()}).values()
        assert types == {np.ndarray}
        same(kept, a * b)
        same((cut(a, 2) - 1).sum(1), (a - 1).sum(1))
        assert {"pointwise", "sum"} & launched()


# ---- matrices of integers ----


@pytest.mark.parametrize("q", [97, 2**32, 2**61 - 1, 2**64])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16, np.int64, np.uint64])
@pytest.mark.parametrize("chunks", [(-1, -1), (7, -1), (-1, 64), (30, 50)], ids=str)
def test_integer_matmul(q: int, dtype: Any, chunks: Any) -> None:
    info, rng = np.iinfo(dtype), np.random.default_rng(1)
    a = rng.integers(info.min, info.max, (70, 130), dtype, endpoint=True)
    a[:2], a[2:4] = info.min, info.max
    A = da.from_array(a, chunks=chunks)
    for shape in ((130,), (130, 1), (130, 5)):
        b = rng.integers(0, q - 1, shape, np.uint64, endpoint=True)
        b[:3] = q - 1
        expected = a.astype(object) @ b.astype(object) % q
        for B in (b, da.from_array(b, chunks=40)):
            found = pd.matmul(A, B, q=q)
            assert found.chunks[0] == A.chunks[0] and found.dtype == (np.uint32 if q <= 2**32 else np.uint64)
            np.testing.assert_array_equal(found.compute(), expected)


def test_matmul_of_a_matrix_mapped_by_workers(tmp_path: Any) -> None:
    """Each worker maps the rows of its blocks, so the matrix is not sent."""
    a = np.random.default_rng(2).integers(0, 256, (400, 300), np.uint8)
    np.save(tmp_path / "a.npy", a)
    rows = [
        da.from_delayed(dask.delayed(mapped)(str(tmp_path / "a.npy"), i, i + 100), (100, 300), np.uint8)
        for i in range(0, 400, 100)
    ]
    b = np.arange(300, dtype=np.uint32)
    with dask.config.set(scheduler="processes", num_workers=2):
        found = pd.matmul(da.concatenate(rows), b, q=2**32).compute()
    np.testing.assert_array_equal(found, a.astype(np.int64) @ b)


def mapped(path: str, first: int, last: int) -> np.ndarray:
    """Rows of a matrix in a file."""
    return np.load(path, mmap_mode="r")[first:last]


def test_matmul_raises_for_invalid_matrices() -> None:
    A = da.ones((4, 6), dtype=np.uint8)
    for a, b, q, error, text in (
        (
            np.ones((4, 6), np.uint8),
            np.ones(6),
            97,
            pg.ParameterError,
            "A must be a dask.array of two axes, not ndarray",
        ),
        (A[0], np.ones(6, int), 97, pg.ParameterError, r"A must be .* not one of shape \(6,\)"),
        (A, np.ones(5, int), 97, pg.ParameterError, "must be as long as"),
        (A, np.ones((6, 2, 2), int), 97, pg.ParameterError, "must be as long as"),
        (A, np.ones(6), 97, pg.errors.CoefficientError, "B has dtype float64"),
        (A * 1.0, np.ones(6, int), 97, pg.errors.CoefficientError, "A has dtype float64"),
        (A, np.ones(6, int), 1, pg.ParameterError, "q=1 must be from 2"),
        (A[A[:, 0] > 0], np.ones(6, int), 97, pg.ParameterError, "unknown lengths"),
    ):
        with pytest.raises(error, match=text):
            pd.matmul(a, b, q=q)
