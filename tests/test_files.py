"""Files of values: what is written and read, and that files are not trusted."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devices import host, on, use
from hypothesis import given
from hypothesis import strategies as st
from oracle import WITH_EVAL, check, draw, every_ring, in_domain, ring
from safetensors.numpy import load_file, save_file
from safetensors.numpy import save as other_writer

import polygpu as pg
from polygpu import Poly, Ring
from polygpu._core.checks import shown
from polygpu.testing import polys, rings

R = Ring(8, pg.ntt_primes(8, bits=30, count=2))
WIDE = Ring(4, 2**100 + 7)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.safetensors"


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# ---- there and back ----


@every_ring
def test_save_load_of_every_ring(name: str, device: str, path: Path) -> None:
    S = ring(name)
    x = draw(S, (2, 3))
    domains = ["coef", "eval"] if name in WITH_EVAL else ["coef"]
    pg.save(path, {domain: in_domain(S(x), domain) for domain in domains} | {"one": S(x[0, 0])})
    values = pg.load(path)
    assert list(values) == [*domains, "one"]
    for domain in domains:
        check(values[domain], x, domain)
        assert values[domain].device == pg._backends.current_device()
    check(values["one"], x[0, 0])
    again = values["one"].ring
    assert again == S and hash(again) == hash(S) and again.roots == S.roots
    assert all(value.ring is again for value in values.values())


@given(st.data())
def test_save_load_of_any_value(data: Any) -> None:
    values = {
        data.draw(st.text(max_size=8).filter(lambda name: name != "__metadata__")): data.draw(
            rings(max_degree=32).flatmap(polys)
        )
        for _ in range(data.draw(st.integers(0, 4)))
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x"
        pg.save(file, values)
        found = pg.load(file)
        arrays = load_file(file)
    assert list(found) == list(values) and set(arrays) == set(values)
    for name, value in values.items():
        again = found[name]
        assert again.ring == value.ring and again.ring.product == value.ring.product
        assert again.domain == value.domain and again.shape == value.shape and again == value
        for array in (again.data, arrays[name]):
            assert array.dtype == value.data.dtype and array.tolist() == value.data.tolist()


PARAMETERS = [
    Ring(8, 17, root=11),
    Ring(8, [17, 97], root="generator"),
    Ring(8, [97, 17], root=(12, 5), product="fft"),
    Ring(8, [17, 97], kind="cyclic", product="ntt"),
    Ring(8, [2**64, 3]),
    Ring(2, 2**20000),  # Python does not print numbers of this many decimal digits
    Ring.preset("ml-kem"),
    Ring.preset("goldilocks", 64),
]


@pytest.mark.parametrize("S", PARAMETERS, ids=lambda S: repr(S)[:60])
def test_load_restores_all_ring_parameters(S: Ring, path: Path) -> None:
    values = {"a": S.random(seed=1), "b": S.random(2, seed=2), "c": pg.Seeded(S, 3, seed=4)}
    if S.has_eval:
        values["b"] = values["b"].ntt()
    pg.save(path, values)
    found = pg.load(path)
    again = found["a"].ring
    assert again.__reduce__() == S.__reduce__() and again is not S
    assert again is found["b"].ring is found["c"].ring
    assert found["a"] == values["a"] and found["b"] == values["b"] and found["a"] + 1 == values["a"] + 1
    assert len(json.loads(header_of(path)["__metadata__"]["polygpu"])["rings"]) == 1


def test_loaded_values_share_equal_rings(path: Path) -> None:
    first, same = Ring(8, [17, 97]), Ring(8, [17, 97])
    by_roots = Ring(8, [17, 97], root=first.roots)
    pg.save(path, {"a": first([1]), "b": same([2]), "c": first[:1]([3]), "d": by_roots([4])})
    found = pg.load(path)
    assert found["a"].ring is found["b"].ring and found["c"].ring == first[:1]
    assert found["d"].ring == first and found["a"] + found["d"] == first([5])
    assert len(json.loads(header_of(path)["__metadata__"]["polygpu"])["rings"]) == 3


def test_file_format_matches_its_documentation(path: Path) -> None:
    """The file is written by hand from the module's documentation, without the library."""
    S = Ring(2, [5, 7], product="ntt")
    wide = 2**64 + 3
    parameters = [
        {"n": 2, "moduli": ["5", "7"], "kind": "negacyclic", "root": "minimal", "product": "ntt"},
        {"n": 2, "moduli": [hex(wide)], "kind": "cyclic", "root": "minimal", "product": "auto"},
    ]
    words = [1, 2, 0, 1]  # 1 + (2 + 2^64) X
    data = np.array(words, "<u8").tobytes() + np.array([4, 0, 6, 3], "<u4").tobytes()
    tensors = {
        "w": {"dtype": "U64", "shape": [2, 2], "data_offsets": [0, 32]},
        "é": {"dtype": "U32", "shape": [1, 2, 2], "data_offsets": [32, 48]},
    }

    def sha256(more: dict[str, Any], residues: bytes) -> str:
        text = json.dumps(more, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("ascii") + b"\n" + residues).hexdigest()

    values = {
        "w": {"ring": 1, "domain": "coef"},
        "s": {"ring": 0, "batch": [3], "seed": {"int": "0x2a"}, "start": 5},
        "é": {"ring": 0, "domain": "coef"},
    }
    for name, value in values.items():
        tensor = tensors.get(name, {})
        told = {k: tensor[k] for k in ("dtype", "shape") if tensor}
        begin, end = tensor.get("data_offsets", (0, 0))
        value["sha256"] = sha256(
            {**value, "name": name, "ring": parameters[value["ring"]], **told}, data[begin:end]
        )
    text = json.dumps({"format": 1, "rings": parameters, "values": values})
    header = json.dumps({"__metadata__": {"polygpu": text}, **tensors}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    found = pg.load(path)
    assert list(found) == ["w", "s", "é"]
    assert found["w"].ring == Ring(2, wide, kind="cyclic")
    assert found["w"].to_bigints().tolist() == [1, 2**64 + 2]
    assert found["é"].ring == S and found["é"].data.tolist() == [[[4, 0], [6, 3]]]
    assert found["s"] == S.random(3, seed=42, start=5)
    # The library writes the same parts.
    pg.save(path, {"w": found["w"], "s": pg.Seeded(S, 3, seed=42, start=5), "é": found["é"]})
    again = header_of(path)
    told = json.loads(again.pop("__metadata__")["polygpu"])
    told["rings"].reverse(), [v.update(ring=1 - v["ring"]) for v in told["values"].values()]
    told["values"] = {name: told["values"][name] for name in values}
    assert again == tensors and told == {"format": 1, "rings": parameters, "values": values}
    assert path.read_bytes().endswith(data) and (len(path.read_bytes()) - len(data)) % 64 == 0


def test_load_of_a_file_of_version_0_1() -> None:
    """The file was written by pg.save of version 0.1.0."""
    loaded = pg.load(Path(__file__).parent / "data" / "saved_by_0.1.safetensors")
    cubes = [x**3 - 100 for x in range(8)]
    narrow, p60 = Ring(8, [97, 193]), Ring(8, pg.ntt_primes(8, bits=60, count=2))
    expected = {
        "narrow": narrow(cubes),
        "evaluated": p60([cubes, cubes[::-1]]).ntt(),
        "cyclic": Ring(8, pg.ntt_primes(8, bits=40, count=1), kind="cyclic")(cubes),
        "long": Ring(8, 2**127 - 1)([x * 2**100 for x in cubes]),
        "named": narrow.random(seed="name"),
    }
    assert loaded.keys() == {*expected, "seeded"}
    for name, value in expected.items():
        assert loaded[name] == value and loaded[name].domain == value.domain, name
    assert loaded["seeded"].data[0, 0].tolist() == SEEDED_BY_0_1


# The first of Seeded(Ring(8, [97, 193]), (2, 3), seed=42, start=5), as 0.1 drew it.
SEEDED_BY_0_1 = [[24, 55, 60, 55, 9, 76, 39, 16], [29, 159, 17, 183, 93, 96, 72, 43]]


def test_files_are_compatible_with_safetensors(path: Path) -> None:
    values = {"u32": R.random(3, seed=1), "u64": WIDE.random(seed=2), "empty": R.zeros((0, 2))}
    pg.save(path, values)
    arrays = load_file(path)
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: value.data.tolist() for name, value in values.items()
    }
    metadata = {**header_of(path)["__metadata__"], "author": "someone"}
    save_file(arrays, path, metadata)  # save_file orders the tensors itself
    found = pg.load(path)
    assert all(found[name] == value and found[name].ring == value.ring for name, value in values.items())


def test_save_load_of_no_values(path: Path) -> None:
    pg.save(path, {})
    assert pg.load(path) == {} == pg.load(path, []) == load_file(path)


def test_save_load_of_any_names(path: Path) -> None:
    values = {name: R([i]) for i, name in enumerate(["", "a/b", "ä\n", "\0", "𝔽", "polygpu", "file", "self"])}
    pg.save(path, values)
    assert pg.load(path) == values
    assert list(pg.load(path, ["self", "", "self"])) == ["self", ""]
    assert pg.load(path, iter(["𝔽"])) == {"𝔽": values["𝔽"]}
    with pytest.raises(
        pg.ParameterError, match=r"'b', which is not in .*x.safetensors. The file has '', 'a/b'"
    ):
        pg.load(path, ["b"])
    with pytest.raises(pg.ParameterError, match=r"'polygpu' must be a list of names"):
        pg.load(path, "polygpu")


def test_save_load_of_62_batch_axes(path: Path) -> None:
    values = {"a": R([1, 2]).reshape((1,) * 62), "s": pg.Seeded(R, (1,) * 62, seed=1)}
    pg.save(path, values)
    found = pg.load(path)
    assert found["a"].ndim == 62 and found["a"] == values["a"] and found["s"] == values["s"].expand()


def test_load_reads_only_the_named_values(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    S = Ring(1 << 12, 97)
    values = {"a": S.random(16, seed=1), "b": S.random(1, seed=2), "c": pg.Seeded(S, 10**15, seed=3)}
    pg.save(path, values)
    read = []
    pieces = pg.files._pieces

    def noted(data: Any) -> Any:
        read.append(data.nbytes)
        return pieces(data)

    monkeypatch.setattr(pg.files, "_pieces", noted)
    assert pg.load(path, ["b"]) == {"b": values["b"]}
    assert read == [values["b"].data.nbytes]
    with open(path, "r+b") as file:  # damage in value "a" is not seen, since it is not read
        file.seek(-values["b"].data.nbytes - 1, os.SEEK_END)
        file.write(b"?")
    assert pg.load(path, ["b"]) == {"b": values["b"]}
    with pytest.raises(pg.errors.FileError, match="value 'a'"):
        pg.load(path, ["a"])


def test_loaded_values_own_their_memory(path: Path) -> None:
    a = R([[1, 2], [3, 4]])
    pg.save(path, {"a": a})
    before = path.read_bytes()
    found = pg.load(path)["a"]
    found[0] = 5
    found.add(found, out=found)
    found.data[...] = 0
    assert path.read_bytes() == before and pg.load(path)["a"] == a
    path.write_bytes(bytes(len(before)))  # the file may change, or go
    assert found == 0 and found.data.ctypes.data % 64 == 0


def test_mapped_values_are_views_of_the_file(path: Path) -> None:
    S = Ring(1 << 12, pg.ntt_primes(1 << 12, bits=50))
    values = {
        "a": S.random(3, seed=1),
        "b": R.random(seed=2).ntt(),
        "w": WIDE.random(seed=3),
        "e": R.zeros(0),
    }
    pg.save(path, values)
    before = path.read_bytes()
    found = pg.load(path, mmap=True)
    assert found == values and all(found[n].ring == values[n].ring for n in values)
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    assert mapped and all(line.split()[1].startswith("r--") for line in mapped)
    for name in "abw":
        x = found[name]
        assert not x.data.flags.writeable and type(x.data) is np.ndarray
        with pytest.raises(pg.errors.OutputError, match="read-only"):
            x[...] = 0
        with pytest.raises(pg.errors.OutputError, match="read-only"):
            x.add(x, out=x)
        own = x.copy()
        own[...] = 0
        assert x * x == values[name] * values[name] and x.intt() == values[name].intt()
    pg.save(path, {"other": R([1])})  # another file, of the same name
    assert found == values and path.read_bytes() != before
    pg.save(path, {"a": found["a"]})  # from a file that has no name any more
    del found, x
    assert pg.load(path) == {"a": values["a"]}


def test_mapped_files_keep_no_descriptors_open(path: Path) -> None:
    """Neither a file of many values nor many mapped files reach the limit of descriptors."""
    values = {f"{i}": R.random(seed=i) for i in range(300)}
    pg.save(path, values)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = os.listdir("/proc/self/fd")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, descriptors)) + 4, before[1]))
    try:
        found = [pg.load(path, mmap=True), *(pg.load(path, ["7"], mmap=True) for _ in range(30))]
        assert pg.load(path) == found[0] == values
        assert len(os.listdir("/proc/self/fd")) == len(descriptors)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    maps = Path("/proc/self/maps")
    assert maps.read_text().count(str(path)) == 31
    last = found[0]["299"]
    del found
    assert maps.read_text().count(str(path)) == 1 and last == values["299"]
    del last
    assert str(path) not in maps.read_text()


@on("simulated", "cuda")
def test_save_load_on_a_card(device: str, path: Path) -> None:
    name = pg._backends.current_device()
    with pg.device("cpu"):
        a, b = R.random(3, seed=1), WIDE.random(seed=2)
    pg.save(path, {"a": a.to(name), "b": b.to(name), "s": pg.Seeded(R, 3, seed=1)})
    for found in (pg.load(path), pg.load(path, device=name), pg.load(path, mmap=True)):
        assert {x.device for x in found.values()} == {name}
        for key, x in {"a": a, "b": b, "s": a}.items():
            assert host(found[key].data).tolist() == x.data.tolist()
    assert {x.device for x in pg.load(path, device="cpu").values()} == {"cpu"}


def test_load_on_host_devices(path: Path) -> None:
    pg.save(path, {"a": R([1, 2])})
    with use("reference"):
        assert pg.load(path)["a"].device == "reference"
        assert pg.load(path, device="cpu")["a"] == R([1, 2])
    with pytest.raises(pg.DeviceError, match="must be 'cpu'"):
        pg.load(path, device="gpu")


# ---- seeds ----


@pytest.mark.parametrize(
    "seed",
    [0, 1, -1, -(2**300), 10**5000, np.int64(7), "", "text ä𝔽\0", b"", b"\0\xff", bytes(1000)],
    ids=shown,
)
def test_seeded_values_are_saved_as_seeds(seed: Any, path: Path) -> None:
    mask = pg.Seeded(Ring(1 << 16, [97, 193]), (2, 1), seed=seed, start=3)
    pg.save(path, {"mask": mask})
    found = pg.load(path)["mask"]
    assert found == mask.expand() == mask.ring.random((2, 1), seed=seed, start=3)
    assert found.ring == mask.ring and found.domain == "coef" and found.shape == (2, 1)
    assert path.stat().st_size < 7000 < found.data.nbytes
    assert load_file(path) == {}


def test_repr_of_seeded_hides_the_seed() -> None:
    for seed, words in {"secret": "str of 6 characters", b"secret": "bytes of 6 bytes"}.items():
        assert repr(pg.Seeded(R, seed=seed)) == f"Seeded({R!r}, batch=(), seed=<{words}>, start=0)"
    assert "<int of 1 bit>" in repr(pg.Seeded(R, seed=1)) and "int of 0 bits" in repr(pg.Seeded(R, seed=0))


@pytest.mark.parametrize(
    ("ring", "options", "error", "words"),
    [
        (R, {}, pg.ParameterError, "seed=None"),
        (R, {"batch": 2, "seed": 1.5}, pg.errors.NotAnInteger, "seed=1.5"),
        (R, {"batch": 2, "seed": True}, pg.errors.NotAnInteger, "seed=True"),
        (R, {"batch": 2, "seed": "\ud800"}, pg.ParameterError, "UTF-8"),
        (R, {"batch": -1, "seed": 1}, pg.ParameterError, "negative"),
        (R, {"batch": 1.0, "seed": 1}, pg.errors.NotAnInteger, "batch"),
        (R, {"batch": 2, "seed": 1, "start": -1}, pg.ParameterError, "start=-1"),
        (R, {"batch": 2, "seed": 1, "start": 2**48}, pg.ParameterError, "2**48"),
        (R([1]), {"batch": 2, "seed": 1}, pg.ParameterError, "must be a Ring"),
    ],
)
def test_invalid_seeds_raise(ring: Any, options: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error) as caught:
        pg.Seeded(ring, **options)
    assert words in str(caught.value)


def test_seeded_values_are_comparable_and_frozen() -> None:
    a, b = pg.Seeded(R, 2, seed=1), pg.Seeded(Ring(8, R.moduli), (2,), seed=1)
    assert a == b and hash(a) == hash(b) and a != pg.Seeded(R, 2, seed=2) and a.batch == (2,)
    with pytest.raises(AttributeError):
        a.seed = 2  # type: ignore[misc]


# ---- what is not written ----


@pytest.mark.parametrize(
    ("values", "words"),
    {
        "a value": (R([1]), "must be a dict"),
        "pairs": ([("a", R([1]))], "must be a dict"),
        "an array": ({"a": np.arange(8)}, "values['a'] must be a Poly, Seeded or SwitchKey, not ndarray"),
        "nothing": ({"a": None}, "NoneType"),
        "an int as name": ({1: R([1])}, "name 1 in values must be a str, not int"),
        "metadata": ({"__metadata__": R([1])}, "__metadata__"),
        "no UTF-8": ({"\ud800": R([1])}, r"'\ud800' in values has no UTF-8"),
        "too many": ({f"{i:0>1000}": R([1]) for i in range(2500)}, "pg.stack"),
        "too many limbs": (
            {"a": pg.Seeded(Ring(1, [2**i for i in [1]] + []), 1, seed="s" * 2**22)},
            "pg.stack",
        ),
    }.values(),
)
def test_save_raises_for_invalid_values(values: Any, words: str, path: Path) -> None:
    path.write_bytes(b"before")
    with pytest.raises(pg.ParameterError) as caught:
        pg.save(path, values)
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400
    assert path.read_bytes() == b"before" and names(path.parent) == [path.name]


def test_save_raises_for_rings_that_load_refuses(path: Path) -> None:
    mersenne = 2**4423 - 1
    long = Ring(1, mersenne, kind="cyclic")
    assert long.has_eval
    pg.save(path, {"a": long([5])})
    assert pg.load(path)["a"] == long([5])
    with pytest.raises(pg.ParameterError, match=r"4423 bits. .* at most 4096 .* a.intt\(\)"):
        pg.save(path, {"a": long([5]).ntt()})
    small = [q for q in range(2, 40000) if all(q % p for p in range(2, int(q**0.5) + 1))]
    limbs = Ring(1, small[:4097], kind="cyclic")
    with pytest.raises(pg.ParameterError, match=r"1 to 4096 moduli. .*numpy.save"):
        pg.save(path, {"a": limbs([5])})
    pg.save(path, {"a": limbs[:4096]([5])})
    assert pg.load(path)["a"].ring == limbs[:4096]


@pytest.mark.parametrize("S", [R, WIDE, Ring(8, 2**32 - 5), Ring(8, [2**64, 3])], ids=repr)
def test_save_raises_for_residues_that_are_not_canonical(S: Ring, path: Path) -> None:
    a = S.zeros((2, 2))
    value = S.modulus if S._plan.basis.wide else S.moduli[0]
    for row in range(S.rows):
        word = value >> 64 * row if S._plan.basis.wide else value
        a.data[1, 0, row, S.n - 1] = min(word & 2**64 - 1, int(np.iinfo(S.dtype).max))
        if not S._plan.basis.wide:
            break
    if S.moduli[0] == 2**64:
        a.data[1, 0] = 0
        a.data[1, 0, 1, S.n - 1] = 3  # every word is a residue of the first limb
    with pytest.raises(
        pg.errors.NotCanonical,
        match=rf"values\['a'\], .* at \(1, 0, [01], {S.n - 1}\) is not a residue modulo",
    ):
        pg.save(path, {"a": a})
    assert names(path.parent) == []


# ---- files that are written whole or not at all ----


def test_save_syncs_before_it_renames(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"before")
    path.chmod(0o600)  # nobody may read more of the new file
    steps, fsync, replace = [], os.fsync, os.replace

    def synced(handle: int) -> None:
        assert path.read_bytes() == b"before"
        steps.append(("fsync", os.fstat(handle).st_size))
        fsync(handle)

    def replaced(source: str, target: str) -> None:
        steps.append(("replace", os.stat(source).st_size))
        assert os.path.dirname(source) == str(path.parent)
        replace(source, target)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr("os.replace", replaced)
    pg.save(path, {"a": R([1])})
    size = path.stat().st_size
    assert steps == [("fsync", size), ("replace", size)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and names(path.parent) == [path.name]


def test_save_follows_symbolic_links(path: Path) -> None:
    target = path.with_name("target")
    path.symlink_to("target")
    for value in (R([1]), R([2])):
        pg.save(path, {"a": value})
        assert path.is_symlink() and pg.load(target) == {"a": value}


@pytest.mark.parametrize("step", ["os.fsync", "os.replace", "polygpu.Poly.cpu"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt(), MemoryError()]
)
@pytest.mark.parametrize("before", [b"before", None])
def test_failed_save_leaves_no_partial_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException, before: bytes | None
) -> None:
    if before is not None:
        path.write_bytes(before)
    there = names(path.parent)

    def fail(*_: Any) -> None:
        assert len(names(path.parent)) == len(there) + 1
        raise error

    monkeypatch.setattr(step, fail)
    with pytest.raises(type(error)):
        pg.save(path, {"a": R([1])})
    assert names(path.parent) == there and (before is None or path.read_bytes() == before)


def test_interrupted_save_leaves_no_partial_file(path: Path) -> None:
    """After Ctrl-C at any moment, the folder holds the complete old or new file and no other file."""
    code = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import polygpu as pg
R = pg.Ring(1 << 14, 97)
values = [R.random(256, seed=i) for i in range(2)]
pg.save({str(path)!r}, {{"a": values[0]}})
print("ready", flush=True)
i = 0
while True:
    i += 1
    pg.save({str(path)!r}, {{"a": values[i % 2]}})
"""
    S = Ring(1 << 14, 97)
    for delay in (0.0, 0.013, 0.031, 0.057):
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None and process.stdout.readline() == "ready\n"
                time.sleep(delay)
                process.send_signal(signal.SIGINT)
                _, text = process.communicate(timeout=60)
                assert "KeyboardInterrupt" in text, text
            finally:
                process.kill()
        assert names(path.parent) == [path.name]
        assert pg.load(path)["a"] in [S.random(256, seed=i) for i in range(2)]


def test_save_and_load_of_paths_that_are_not_files_raise(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place, words in {
        tmp_path: "is not a regular file",
        tmp_path / "absent" / "x": "No such file or directory",
        tmp_path / "pipe": "is not a regular file",
        "/dev/null": "is not a regular file",
        "": "is not a regular file",
    }.items():
        with pytest.raises(pg.ParameterError, match=words):
            pg.save(place, {"a": R([1])})
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode) and names(tmp_path) == ["pipe"]
    for place in (tmp_path, tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(pg.errors.FileError, match="is a folder, pipe or device"):
            pg.load(place)
    with pytest.raises(FileNotFoundError):
        pg.load(tmp_path / "absent")


def test_two_processes_save_to_one_path(path: Path) -> None:
    """Each call succeeds, and a reader finds one of the files, complete."""
    code = f"""
import sys, time, polygpu as pg
value = pg.Ring(64, 97).random(4, seed=int(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
until, calls = time.monotonic() + 0.5, 0
while time.monotonic() < until or calls < 20:
    pg.save({str(path)!r}, {{"a": value}})
    calls += 1
"""
    values = [Ring(64, 97).random(4, seed=seed) for seed in (1, 2)]
    pg.save(path, {"a": values[0]})
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, seed],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in "12"
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        while any(process.poll() is None for process in processes):
            assert pg.load(path)["a"] in values
        for process in processes:
            assert process.communicate(timeout=60)[1] == "" and process.returncode == 0
    finally:
        for process in processes:
            process.kill()
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_invalid_file_names_raise(name: str, tmp_path: Path) -> None:
    with pytest.raises(pg.ParameterError, match="is not a name that a file can have"):
        pg.save(str(tmp_path / name), {"a": R([1])})
    with pytest.raises(pg.errors.FileError, match="is not a name that a file can have"):
        pg.load(str(tmp_path / name))


def test_give_name_does_not_overwrite(tmp_path: Path) -> None:
    for what in ("file", "folder"):
        for taken in ("file", "folder", "dangling"):
            new, name = tmp_path / "new", tmp_path / f"{what} {taken}"
            new.write_bytes(b"new") if what == "file" else new.mkdir()
            if taken == "folder":
                name.mkdir()
                (name / "x").touch()
            elif taken == "file":
                name.write_bytes(b"old")
            else:
                name.symlink_to("absent")
            with pytest.raises(pg.errors.OutputError, match="exists"):
                pg.files.give_name(new, name)
            assert new.exists() and (taken != "file" or name.read_bytes() == b"old")
            pg.files.give_name(new, tmp_path / f"{what} {taken} free")
            assert not new.exists() and (tmp_path / f"{what} {taken} free").exists()


# ---- files that are wrong ----


def header_of(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    found: dict[str, Any] = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return found


def raw_file(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


class Forged:
    """A file written by hand. Its digests fit its contents, also where these are wrong."""

    def __init__(self) -> None:
        self.ring: dict[str, Any] = {
            "n": 4,
            "moduli": ["17", "97"],
            "kind": "negacyclic",
            "root": "minimal",
            "product": "auto",
        }
        self.tensor: dict[str, Any] = {"dtype": "U32", "shape": [2, 4], "data_offsets": [0, 32]}
        self.value: dict[str, Any] = {"ring": 0, "domain": "coef"}
        self.told: dict[str, Any] = {"format": 1}
        self.data = np.arange(8, dtype="<u4").tobytes()
        self.tensors: dict[str, Any] = {}  # more tensors, by name
        self.values: dict[str, Any] = {}

    def file(self) -> bytes:
        value = dict(self.value)
        described = {**value, "name": "a", "ring": self.ring}
        tensors = {"a": self.tensor} if self.tensor else {}
        if isinstance(self.tensor, dict) and self.tensor:
            described |= {key: self.tensor.get(key) for key in ("dtype", "shape")}
        text = json.dumps(described, sort_keys=True, separators=(",", ":")).encode()
        value.setdefault("sha256", hashlib.sha256(text + b"\n" + self.data).hexdigest())
        told = {"rings": [self.ring], "values": {"a": value, **self.values}, **self.told}
        header = {"__metadata__": {"polygpu": json.dumps(told)}, **tensors, **self.tensors}
        return raw_file(json.dumps(header).encode(), self.data)


def changed(part: str, /, **changes: Any) -> bytes:
    forged = Forged()
    if part == "file":
        vars(forged).update(changes)
    else:
        getattr(forged, part).update(changes)
    return forged.file()


def without(part: str, key: str) -> bytes:
    forged = Forged()
    del getattr(forged, part)[key]
    return forged.file()


def seeded(n: int = 4, /, **changes: Any) -> bytes:
    forged = Forged()
    forged.tensor, forged.data = {}, b""
    forged.ring["n"] = n
    forged.value = {"ring": 0, "batch": [2], "seed": {"int": "0x1"}, "start": 0, **changes}
    return forged.file()


def metadata(text: Any) -> bytes:
    return raw_file(json.dumps({"__metadata__": text}).encode())


def told(text: Any) -> bytes:
    return metadata({"polygpu": text if isinstance(text, str) else json.dumps(text)})


def residues(values: list[int], moduli: list[str], words: str = "<u8", rows: int = 0, **ring: Any) -> bytes:
    forged = Forged()
    rows = rows or len(moduli)
    forged.data = np.array(values, dtype=words).tobytes()
    forged.ring.update(moduli=moduli, n=len(values) // rows, **ring)
    dtype = "U64" if words == "<u8" else "U32"
    forged.tensor.update(dtype=dtype, shape=[rows, len(values) // rows], data_offsets=[0, len(forged.data)])
    return forged.file()


TWICE = (
    b'{"__metadata__":{"polygpu":"{}"},"a":{"dtype":"U32","shape":[2,4],"data_offsets":[0,32]},'
    b'"a":{"dtype":"U32","shape":[2,4],"data_offsets":[0,32]}}'
)
U32 = {"dtype": "U32", "shape": [1, 1], "data_offsets": [32, 36]}

NESTED: Any = json.loads("[" * 900 + "1" + "]" * 900)

# By what is wrong: the file, and a part of the message.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "cut after 0 bytes"),
    "seven bytes": (bytes(7), "cut after 7 bytes"),
    "a header of 2^64 - 1 bytes": (b"\xff" * 8 + b"{}", "header of 18446744073709551615 bytes"),
    "a header longer than the file": (
        raw_file(b"{}", length=3),
        "It has 10 bytes, but its first 8 bytes announce a header of 3 bytes",
    ),
    "a header of 4 MiB and more": (raw_file(b" " * (1 << 22) + b"{}"), "at most 4194304"),
    "no header": (bytes(8), "JSON"),
    "no JSON": (raw_file(b"{"), "JSON"),
    "a list": (raw_file(b"[]"), "not a JSON object"),
    "deep": (raw_file(b"[" * 200000), "JSON"),
    "deep and closed": (raw_file(b"[" * 100000 + b"]" * 100000), "JSON"),
    "deep objects": (raw_file(b'{"a":' * 100000 + b"1" + b"}" * 100000), "JSON"),
    "UTF-16": (raw_file("{}".encode("utf-16")), "JSON"),
    "a byte order mark": (raw_file(b"\xef\xbb\xbf{}"), "JSON"),
    "no UTF-8": (raw_file(b'{"\xff": 1}'), "JSON"),
    "NaN": (raw_file(b'{"a": NaN}'), "JSON"),
    "a double": (raw_file(b'{"a": 1e3}'), "JSON"),
    "a long number": (raw_file(b'{"a": ' + b"9" * 100000 + b"}"), "JSON"),
    "a name twice": (raw_file(TWICE, bytes(32)), "no object has a name twice"),
    "of another program": (other_writer({"a": np.arange(8, dtype=np.uint32)}), "does not name the rings"),
    "metadata that is a list": (metadata(["polygpu"]), "does not name the rings"),
    "metadata that is a number": (metadata({"polygpu": 1}), "does not name the rings"),
    "metadata that is no JSON": (told("{"), "its metadata must be JSON"),
    "deep metadata": (told("[" * 100000), "its metadata must be JSON"),
    "a name twice in metadata": (told('{"format": 1, "format": 1}'), "no object has a name twice"),
    "a surrogate": (told('"\ud800"'), "its metadata must be JSON"),
    "metadata that is a number in JSON": (told(1), "its format must be 1"),
    "no format": (told({"rings": [], "values": {}}), "its format must be 1"),
    "a format of the future": (changed("told", format=2), "newer polygpu"),
    "format 0": (changed("told", format=0), "its format must be 1"),
    "format true": (changed("told", format=True), "its format must be 1"),
    "format as text": (changed("told", format="1"), "its format must be 1"),
    "more in the metadata": (changed("told", more=1), "nothing else"),
    "no values": (told({"format": 1, "rings": []}), "must have format, rings, values and nothing else"),
    "rings by name": (changed("told", rings={}), "a list of rings"),
    "values in a list": (changed("told", values=[]), "values by name"),
    "a value that is none": (changed("values", b=None), "value 'b': it must have"),
    "a value without residues": (
        changed("values", b={"ring": 0, "domain": "coef", "sha256": ""}),
        "value 'b': its residues are missing",
    ),
    "residues without a value": (
        changed("file", tensors={"b": U32}, data=bytes(36)),
        "value 'b': the metadata names no ring",
    ),
    "a name without UTF-8": (
        changed("values", **{"\ud800": {"ring": 0, "domain": "coef", "sha256": ""}}),
        "no UTF-8",
    ),
    "residues and a seed": (
        changed("file", value={"ring": 0, "batch": [], "seed": {"int": "0x1"}, "start": 0}),
        "residues and a seed",
    ),
    # tensors
    "floats": (changed("tensor", dtype="F32"), "'F32' must be U32 or U64"),
    "signed": (changed("tensor", dtype="I32"), "'I32' must be U32 or U64"),
    "no dtype": (changed("tensor", dtype=None), "NoneType must be U32 or U64"),
    "a list of dtypes": (changed("tensor", dtype=["U32"]), "must be U32 or U64"),
    "the other dtype": (changed("tensor", dtype="U64", shape=[1, 4]), "needs uint32"),
    "no shape": (without("tensor", "shape"), "must have data_offsets, dtype, shape"),
    "more in a tensor": (changed("tensor", more=1), "nothing else"),
    "one axis": (changed("tensor", shape=[8]), "2 to 64 lengths"),
    "65 axes": (changed("tensor", shape=[1] * 63 + [2, 4]), "2 to 64 lengths"),
    "a negative length": (changed("tensor", shape=[-2, -4]), "lengths"),
    "lengths as text": (changed("tensor", shape=["2", "4"]), "lengths"),
    "a length that is true": (changed("tensor", shape=[True, 2, 4]), "lengths"),
    "a shape of 2^64": (changed("tensor", shape=[2**32, 2**32]), "do not have the size"),
    "a shape of 2^128": (changed("tensor", shape=[2**64 - 1, 2**64 - 1]), "do not have the size"),
    "another shape": (changed("tensor", shape=[4, 2]), "needs uint32 and a shape that ends in (2, 4)"),
    "negative offsets": (changed("tensor", data_offsets=[-32, 0]), "two numbers"),
    "three offsets": (changed("tensor", data_offsets=[0, 16, 32]), "two numbers"),
    "offsets in the wrong order": (changed("tensor", data_offsets=[32, 0]), "do not have the size"),
    "offsets beyond the file": (
        changed("tensor", data_offsets=[32, 64]),
        "end at byte 0, and the next begin at byte 32",
    ),
    "offsets of 2^64": (changed("tensor", data_offsets=[2**64 - 32, 2**64]), "must follow each other"),
    "overlapping": (
        changed("file", tensors={"b": {**U32, "data_offsets": [28, 32]}}),
        "end at byte 32, and the next begin at byte 28",
    ),
    "one tensor in another": (
        changed("file", tensors={"b": {**U32, "data_offsets": [0, 4]}}),
        "must follow each other",
    ),
    "a gap": (
        changed("file", tensors={"b": {**U32, "data_offsets": [36, 40]}}, data=bytes(40)),
        "end at byte 32, and the next begin at byte 36",
    ),
    "bytes behind": (changed("file", data=bytes(33)), "announces 32 bytes of residues, and 33 are there"),
    "bytes missing": (changed("file", data=bytes(31)), "announces 32 bytes of residues, and 31 are there"),
    # values
    "another domain": (changed("value", domain="ntt"), "'coef' or 'eval'"),
    "a domain in a list": (changed("value", domain=["coef"]), "'coef' or 'eval'"),
    "no domain": (without("value", "domain"), "must have domain, ring, sha256"),
    "ring -1": (changed("value", ring=-1), "one of the 1 rings in the file"),
    "ring 1": (changed("value", ring=1), "one of the 1 rings in the file"),
    "ring true": (changed("value", ring=True), "one of the 1 rings in the file"),
    "a digest that is a number": (changed("value", sha256=1), "must be a string"),
    "a wrong digest": (changed("value", sha256="0" * 64), "a byte has changed"),
    "an evaluated value of a ring without transform": (
        residues([1, 2, 3, 4], ["18"], "<u4"),  # replaced below
        "",
    ),
    # rings
    "degree 0": (changed("ring", n=0), "n=0 must be at least 1"),
    "a degree of 2^60": (changed("ring", n=2**60), "ends in (2, 1152921504606846976)"),
    "a degree of 2^63": (changed("ring", n=2**63), "at most 2**62"),
    "a degree as text": (changed("ring", n="4"), "n must be an int"),
    "a degree that is true": (changed("ring", n=True), "n must be an int"),
    "no kind": (without("ring", "kind"), "ring 0: it must have"),
    "another kind": (changed("ring", kind="skew"), "negacyclic, cyclic"),
    "kinds": (changed("ring", kind=["cyclic"]), "negacyclic, cyclic"),
    "a deep kind": (changed("ring", kind=NESTED), "negacyclic, cyclic"),
    "a long kind": (changed("ring", kind="k" * 10**6), "negacyclic, cyclic"),
    "a deep product": (changed("ring", product=NESTED), "must be one of"),
    "a deep degree": (changed("ring", n=NESTED), "n must be an int"),
    "a deep root": (changed("ring", root=NESTED), "list must be a number as a string"),
    "a deep modulus": (changed("ring", moduli=NESTED), "list must be a number as a string"),
    "a deep dtype": (changed("tensor", dtype=NESTED), "list must be U32 or U64"),
    "a deep length": (changed("tensor", shape=[2, NESTED]), "2 to 64 lengths"),
    "a deep domain": (changed("value", domain=NESTED), "'coef' or 'eval'"),
    "a deep seed": (seeded(seed={"int": NESTED}), "its seed must be"),
    "a deep batch": (seeded(batch=NESTED), "lengths"),
    "a long name": (changed("values", **{"n" * 10**6: 1}), "nnn...': it must have"),
    "another product": (changed("ring", product="fast"), "must be one of"),
    "product null": (changed("ring", product=None), "must be one of"),
    "no moduli": (changed("ring", moduli=[]), "1 to 4096 moduli"),
    "a modulus as text": (changed("ring", moduli="17"), "1 to 4096 moduli"),
    "100000 moduli": (changed("ring", moduli=["17"] * 100000), "1 to 4096 moduli"),
    "moduli that are numbers": (changed("ring", moduli=[17, 97]), "must be a number as a string"),
    "modulus 1": (changed("ring", moduli=["1", "97"]), "at least 2"),
    "common factors": (changed("ring", moduli=["6", "9"]), "share the factor 3"),
    "a negative modulus": (changed("ring", moduli=["-17", "97"]), "number as a string"),
    "a modulus with a zero in front": (changed("ring", moduli=["017", "97"]), "number as a string"),
    "a modulus with an underscore": (changed("ring", moduli=["1_7", "97"]), "number as a string"),
    "a modulus with blanks": (changed("ring", moduli=[" 17", "97"]), "number as a string"),
    "a modulus in other digits": (changed("ring", moduli=["١٧", "97"]), "number as a string"),
    "a modulus of a million digits": (changed("ring", moduli=["9" * 10**6]), "number as a string"),
    "a short modulus in hexadecimal": (changed("ring", moduli=["0x11", "97"]), "number as a string"),
    "a wide modulus among others": (changed("ring", moduli=[hex(2**65), "97"]), "must be the only one"),
    "a modulus of a million hexadecimal digits": (
        changed("ring", moduli=["0x" + "f" * 10**6], n=4),
        "ends in (62500, 4)",
    ),
    "a root of the wrong order": (changed("ring", root=["3", "3"]), "does not have order"),
    "a root for a composite modulus": (changed("ring", moduli=["15", "97"], root=["3", "3"]), "not prime"),
    "too few roots": (changed("ring", root=["2"]), "roots in root is 1, and the number of moduli is 2"),
    "100000 roots": (changed("ring", root=["2"] * 100000), "'minimal', 'generator' or a list"),
    "a root that is a number": (changed("ring", root=2), "'minimal', 'generator' or a list"),
    "another rule for roots": (changed("ring", root="random"), "'minimal', 'generator' or a list"),
    "a root for a modulus that takes hours": (
        changed("ring", moduli=[hex(2**44497 - 1)], root=["2"]),
        "at most 4096 bits are allowed",
    ),
    # residues
    "a residue of q": (residues([16, 17, 0, 0], ["17"], "<u4"), "17 at (0, 1) is not a residue modulo 17"),
    "a residue of q in another limb": (residues([1, 1, 1, 97], ["17", "97"], "<u4"), "97 at (1, 1)"),
    "the largest word": (residues([2**32 - 1, 0], ["4294967291"], "<u4"), "4294967295 at (0, 0)"),
    "the largest long word": (residues([0, 2**64 - 1], [str(2**64 - 59)]), f"{2**64 - 1} at (0, 1)"),
    "a wide residue of q": (residues([0, 1, 0, 1], [hex(2**64 + 1)], rows=2), f"{2**64 + 1} at (0, 1)"),
    "a wide residue above": (residues([0, 0, 2, 0], [hex(2**64 + 1)], rows=2), f"{2**65} at (0, 0)"),
    # seeds
    "no seed": (seeded(seed=None), "its seed must be"),
    "a seed that is a number": (seeded(seed={"int": 1}), "its seed must be"),
    "a seed in decimal": (seeded(seed={"int": "1"}), "its seed must be"),
    "a negative zero": (seeded(seed={"int": "-0x0"}), "its seed must be"),
    "two seeds": (seeded(seed={"int": "0x1", "str": ""}), "its seed must be"),
    "a seed without UTF-8": (seeded(seed={"str": "\ud800"}), "its seed must be"),
    "odd bytes": (seeded(seed={"bytes": "0"}), "its seed must be"),
    "bytes with blanks": (seeded(seed={"bytes": "00 01"}), "its seed must be"),
    "a seed of another kind": (seeded(seed={"os": ""}), "its seed must be"),
    "a negative start": (seeded(start=-1), "its start must be"),
    "a late start": (seeded(start=2**48), "in [0, 2**48)"),
    "a negative batch": (seeded(batch=[-1]), "lengths"),
    "a batch of 63 axes": (seeded(batch=[1] * 63), "at most 62 lengths"),
    "a batch that is a number": (seeded(batch=2), "lengths"),
    "a seed with a domain": (seeded(domain="coef"), "nothing else"),
}


def _evaluated(moduli: list[str], n: int = 4) -> bytes:
    forged = Forged()
    forged.ring.update(moduli=moduli, n=n)
    forged.value["domain"] = "eval"
    forged.tensor["shape"] = [len(moduli), n]
    forged.data = bytes(4 * len(moduli) * n)
    forged.tensor["data_offsets"] = [0, len(forged.data)]
    return forged.file()


HOSTILE["an evaluated value of a ring without transform"] = (_evaluated(["18"]), "not prime")


def test_load_of_unchanged_forged_files(path: Path) -> None:
    """The unchanged files load, so each file of the table is wrong in exactly one way."""
    for content, value in {
        Forged().file(): Ring(4, [17, 97]).from_residues(np.arange(8).reshape(2, 4)),
        _evaluated(["17", "97"]): Ring(4, [17, 97]).zeros(),
        seeded(): Ring(4, [17, 97]).random(2, seed=1),
        residues([16, 15, 0, 1], ["17"], "<u4"): Ring(4, 17)([16, 15, 0, 1]),
        residues([0, 1, 1, 0], [hex(2**64 + 1)], rows=2): Ring(2, 2**64 + 1)([2**64, 1]),
    }.items():
        path.write_bytes(content)
        found = pg.load(path)["a"]
        assert found.ring == value.ring and found == value


@pytest.mark.parametrize(("mmap", "verify"), [(False, True), (True, False)])
@pytest.mark.parametrize("name", HOSTILE)
def test_load_of_hostile_files(name: str, mmap: bool, verify: bool, path: Path) -> None:
    """Every file raises one error of one line, quickly and with little memory."""
    content, words = HOSTILE[name]
    path.write_bytes(content)
    if name == "a wrong digest" and not verify:
        assert pg.load(path, verify=False)["a"].data.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        return
    began = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(pg.errors.FileError) as caught:
            pg.load(path, verify=verify, mmap=mmap)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert words in message, message
    assert (
        message.startswith(f"{path}: ") and ". " in message and message.endswith(".") and "\n" not in message
    )
    assert len(message.removeprefix(str(path))) < 500, message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert isinstance(caught.value, ValueError)
    assert peak < 1 << 25 and time.process_time() - began < 5


@pytest.mark.parametrize("batch", [[], [2**40], [2**60, 2**60], [0, 2**62]])
@pytest.mark.parametrize("n", [4, 2**60])
def test_load_of_huge_seeded_values_raises(batch: list[int], n: int, path: Path) -> None:
    if n == 4 and batch == []:
        pytest.skip("fits")
    path.write_bytes(seeded(n, batch=batch))
    with pytest.raises((pg.errors.OutOfHostMemory, pg.errors.FileError)):
        pg.load(path)


def test_load_of_a_file_larger_than_memory(path: Path) -> None:
    count = 2**43 // 8
    forged = Forged()
    forged.tensor.update(shape=[count, 2, 4], data_offsets=[0, 32 * count])
    content = forged.file()
    path.write_bytes(content[: -len(forged.data)])
    try:
        os.truncate(path, len(content) - len(forged.data) + 32 * count)  # a sparse file
    except OSError:
        pytest.skip("no files of 32 TiB here")
    with pytest.raises(pg.errors.OutOfHostMemory, match="GiB is needed"):
        pg.load(path)


def test_load_of_a_file_truncated_while_reading(path: Path) -> None:
    for mmap in (False, True):
        pg.save(path, {"a": R.random(100, seed=1)})
        with pg.files.opened(path) as file:
            os.truncate(path, path.stat().st_size - 4096)
            with pytest.raises(pg.errors.FileError, match="while it was read"):
                file.read("a", mmap=mmap)


# ---- files that are damaged ----

SAMPLE = {
    "a": R.random(2, seed=1),
    "b": R.ones().ntt(),
    "c": WIDE.random(seed=2),
    "s": pg.Seeded(R, 2, seed=b"seed", start=1),
    "t": pg.Seeded(Ring(2, 97, root=96, kind="cyclic"), (), seed=-5),
}
EXPECTED = {name: x.expand() if isinstance(x, pg.Seeded) else x for name, x in SAMPLE.items()}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("sample") / "x"
    pg.save(file, SAMPLE)
    return file.read_bytes()


def assert_equal_or_refused(content: bytes, folder: str) -> bool:
    """Return whether the file is refused. If it is not, check that its values are those of the sample."""
    file = Path(folder) / "x"
    file.write_bytes(content)
    try:
        found = pg.load(file)
    except pg.errors.FileError:
        return True
    assert list(found) == list(EXPECTED)
    for name, x in EXPECTED.items():
        again = found[name]
        assert again.ring.__reduce__() == x.ring.__reduce__() and again.domain == x.domain
        assert again.data.dtype == x.data.dtype and np.array_equal(again.data, x.data)
    return False


def test_load_of_the_undamaged_sample(sample: bytes, tmp_path: Path) -> None:
    assert not assert_equal_or_refused(sample, str(tmp_path))


def test_load_detects_every_flipped_bit(sample: bytes, tmp_path: Path) -> None:
    """One bit of each byte is flipped. Only padding spaces may become another blank."""
    blanks = 0
    for at in range(len(sample)):
        damaged = bytearray(sample)
        damaged[at] ^= 1 << at % 8
        if not assert_equal_or_refused(bytes(damaged), str(tmp_path)):
            blanks += 1
            assert sample[at] == ord(" ")
    assert blanks <= 64


@given(st.data())
def test_load_detects_random_damage(sample: bytes, data: Any) -> None:
    damaged = bytearray(sample)
    header = 8 + int.from_bytes(sample[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.integers(0, len(damaged) - 1), st.integers(0, header)))
        way = data.draw(st.sampled_from(("write", "remove", "insert", "copy", "cut")))
        part = data.draw(st.binary(min_size=1, max_size=9))
        if way == "write":
            damaged[at : at + len(part)] = part
        elif way == "remove":
            del damaged[at : at + len(part)]
        elif way == "insert":
            damaged[at:at] = part
        elif way == "copy":  # bytes from elsewhere in the file are valid more often than random ones
            begin = data.draw(st.integers(0, header))
            damaged[at : at + 8] = sample[begin : begin + 8]
        else:
            del damaged[at:]
        if not damaged:
            break
    if data.draw(st.booleans()):  # the header's length fits again
        damaged[:8] = max(0, header - 8 + len(damaged) - len(sample)).to_bytes(8, "little")
    with tempfile.TemporaryDirectory() as folder:
        assert_equal_or_refused(bytes(damaged), folder)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.text(max_size=4)),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3), st.dictionaries(st.text(max_size=4), parts, max_size=3)
    ),
    max_leaves=6,
)


@given(st.data())
def test_load_checks_changed_headers(sample: bytes, data: Any) -> None:
    """A part of the header is replaced and digests are skipped: loading raises or gives canonical values."""
    length = int.from_bytes(sample[:8], "little")
    header = json.loads(sample[8 : 8 + length])
    inner = json.loads(header["__metadata__"]["polygpu"])
    part: Any = data.draw(st.sampled_from([header, inner]))
    while True:
        keys = list(part) if isinstance(part, dict) else list(range(len(part)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(part[key], (dict, list)) or not part[key] or data.draw(st.integers(0, 3)) == 0:
            break
        part = part[key]
    part[key] = data.draw(
        st.one_of(JSON, st.sampled_from([1, 2, 4, 8, 2**60, "17", "97", "coef", "eval", []]))
    )
    if isinstance(header.get("__metadata__"), dict):
        header["__metadata__"].setdefault("polygpu", "")
        if header["__metadata__"]["polygpu"] == json.loads(sample[8 : 8 + length])["__metadata__"]["polygpu"]:
            header["__metadata__"]["polygpu"] = json.dumps(inner)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x"
        file.write_bytes(raw_file(json.dumps(header).encode(), sample[8 + length :]))
        try:
            found = pg.load(file, verify=False)
        except (pg.errors.FileError, pg.errors.OutOfHostMemory):
            return
    for value in found.values():
        assert isinstance(value, Poly)
        with pg.debug():
            value.ring.from_residues(value.data, domain=value.domain, copy=False)


def test_save_load_imports_no_other_package() -> None:
    code = """
import sys, tempfile, polygpu as pg
with tempfile.TemporaryDirectory() as folder:
    pg.save(f"{folder}/x", {"a": pg.Ring(4, 17)([1]), "s": pg.Seeded(pg.Ring(4, 17), seed=1)})
    print(pg.load(f"{folder}/x")["a"].data.tolist())
print({"safetensors", "sympy"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[[1, 0, 0, 0]]\nset()\n", done.stderr
