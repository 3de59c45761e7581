"""Save values to safetensors files, with their rings in the metadata, and load them.

A file is written whole or not at all. When it is read, its content is checked and not trusted. This text
describes the format, so that programs in other languages can read it. A file has three parts: the length of
the header, as 8 little-endian bytes; the header, in JSON; and the residues of all values, as little-endian
words without gaps. For each value that has residues in the file, the header has an entry

  NAME: {"dtype": "U32" or "U64", "shape": [*batch, rows, n], "data_offsets": [first byte, last byte + 1]}

The header also has an entry "__metadata__": {"polygpu": TEXT}. TEXT is a string that holds JSON again. If
a field is shown without a value, it holds the argument or attribute of this name, or is explained below:

  {"format": 1, "rings": [RING, ...], "values": {NAME: VALUE, ...}}
  RING    {"n", "moduli", "kind", "root", "product"}, the arguments of Ring. Moduli and roots are strings:
          decimal up to 2^64, hexadecimal ("0x...") above, since Python limits the length of decimal numbers
  VALUE   {"ring": index in "rings", "domain": "coef" or "eval", "sha256"} for an ordinary value
          {"ring", "batch", "seed", "start", "sha256"} for a Seeded, which has no residues in the file
          {"ring", "domain": "eval", "key", "sha256"} for a SwitchKey; "ring" is the ring of the whole key
  key     {"ring", "special": indices in "rings", "limbs_per_digit", "galois_element": -1 for None, "turned":
          0 or 1, "masks"}, the attributes of the SwitchKey. "masks" is a list of 32-byte seeds in
          hexadecimal. If "masks" is empty, the residues in the file are the whole key. Otherwise they are
          only the bodies b_j of the key, and the mask a_j is drawn by Ring.random from seed j, with
          domain="eval"
  seed    for example {"int": "0x2a"}, {"str": "text"} or {"bytes": "00ff"}, by the type of the seed
  sha256  SHA-256 of a JSON text, a newline and the residues. The JSON text is ASCII, with sorted keys and no
          spaces. It is VALUE without "sha256", but "ring" is the whole RING instead of its index, and "name"
          is added. Unless the value is a Seeded, "dtype" and "shape" of the header are added too

Each row of residues is a limb. But if the ring has one modulus above 2^64, each row holds one word of the
residues, lowest word first. Evaluated values are in bit-reversed order, see Poly.ntt. Source of safetensors:
https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from math import prod
from typing import Any, cast, get_args

import numpy as np

from ._backends import Array, host
from ._backends import device as on_device
from ._core.checks import Domain, Product, checked_batch, integer, shown
from ._core.memory import no_memory
from ._core.plans.basis import Basis
from ._core.quotient import KINDS
from ._ops.arrays import empty
from ._ops.sampling import Batch, Seed, key_of
from .errors import FileError, NotCanonical, OutputError, ParameterError, PolyGPUError
from .lattice.keys import SwitchKey, expanded
from .poly import Poly
from .ring import Ring

_FORMAT = 1
_LONGEST_HEADER = 1 << 22  # bytes, for about 10000 values; parsed, a header takes up to 25 times its bytes
_MOST_LIMBS = 1 << 12  # the check that moduli are coprime takes time quadratic in their number
_LONGEST_PRIME = 1 << 12  # bits; a primality test of such a number takes 2 s
_MOST_AXES = 64  # NumPy allows at most 64 axes
_PIECE = 1 << 20  # bytes that are hashed at a time; they fit a cache, and Ctrl-C acts between pieces
_ALIGNMENT = 64  # in the file, the residues begin at a multiple of 64 bytes
_DTYPES: dict[str, np.dtype[Any]] = {"U64": np.dtype(np.uint64), "U32": np.dtype(np.uint32)}
_NUMBER = r"0|[1-9][0-9]{0,19}|0x[1-9a-f][0-9a-f]*"
_SEED = r"-?0x[0-9a-f]+"
DAMAGED = "Fetch the file again, or write it anew with pg.save(path, values)."


@dataclass(frozen=True, repr=False)
class Seeded:
    """A uniform random value stored as its seed. It stands for ring.random(batch, seed=seed, start=start).

    A Seeded takes about a hundred bytes in a file. Whoever reads the file can compute the value. So do not
    use a Seeded for a secret value, and do not draw secrets from its seed.

    Args:
        ring: the ring of the value.
        batch: the batch shape.
        seed: an int, bytes or str.
        start: the index of the first polynomial in the stream of the seed, see Ring.random.

    Raises:
        ParameterError: seed is None, ring is not a Ring, or Ring.random does not allow this batch or start.
        NotAnInteger: seed is not an int, bytes or str, or start is not an int.

    Cost: constant time. Only expand() draws the residues.

    >>> from polygpu import Ring
    >>> mask = Seeded(Ring(4, 97), batch=2, seed=1)
    >>> mask
    Seeded(Ring(4, 97), batch=(2,), seed=<int of 1 bit>, start=0)
    >>> mask.expand() == Ring(4, 97).random(2, seed=1)
    True
    """

    ring: Ring
    batch: Batch = ()
    seed: Seed = field(default=None, kw_only=True)
    start: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.ring, Ring):
            raise ParameterError(f"ring must be a Ring, not {type(self.ring).__name__}.")
        if self.seed is None:
            raise ParameterError("seed=None cannot be repeated from a file. Give an int, bytes or str.")
        key_of(self.seed)
        seed = self.seed if isinstance(self.seed, (bytes, str)) else integer(self.seed, "seed")
        batch, start = checked_batch(self.batch), integer(self.start, "start")
        if not 0 <= start < 1 << 48:
            raise ParameterError(f"start={shown(start)} must be in [0, 2**48), as in Ring.random.")
        for name, value in (("batch", batch), ("seed", seed), ("start", start)):
            object.__setattr__(self, name, value)

    def expand(self) -> Poly:
        """Return the value ring.random(batch, seed=seed, start=start), in coefficients on the current device.

        Raises:
            OutOfHostMemory, OutOfDeviceMemory: the value does not fit.

        Cost: see Ring.random.

        >>> import polygpu as pg
        >>> R = pg.Ring(4, 17)
        >>> pg.Seeded(R, (2,), seed=7).expand() == R.random(2, seed=7)
        True
        """
        return self.ring.random(self.batch, seed=self.seed, start=self.start)

    def __repr__(self) -> str:
        return (
            f"Seeded({self.ring!r}, batch={self.batch}, seed=<{seed_shown(self.seed)}>, start={self.start})"
        )


def seed_shown(seed: Seed) -> str:
    """Return the type and length of a seed, but not its value."""
    if isinstance(seed, int):
        kind, count, unit = "int", seed.bit_length(), "bit"
    else:
        assert seed is not None
        kind, count, unit = type(seed).__name__, len(seed), "byte" if isinstance(seed, bytes) else "character"
    return f"{kind} of {count} {unit}{'s' * (count != 1)}"


# ---- writing ----


def save(path: str | os.PathLike[str], values: Mapping[str, Poly | Seeded | SwitchKey]) -> None:
    """Write values, keys and their rings to a safetensors file. polygpu.load reads it.

    The new file is written under a temporary name in the same folder, flushed to the disk and renamed. So at
    any time `path` is either the whole old file or the whole new file. After an error or Ctrl-C, the old file
    is unchanged and the temporary file is removed. If `path` is a symbolic link, the file to which it points
    is replaced.

    Args:
        path: the path of the file. By convention it ends in .safetensors.
        values: a dict from names to values. A value is a Poly on any device and in either domain, a Seeded or
            a SwitchKey. A Seeded is written as its seed. A SwitchKey made by lattice.switch_key or
            lattice.rotation_keys is written as its bodies and the public seeds of its masks, which takes half
            as many bytes as the whole key. A ring that several values share is written once.

    Raises:
        ParameterError: `values` is not a dict from names to values; `path` is not a regular file or cannot be
            written; a name cannot be encoded as UTF-8; or the header is longer than 4 MiB (about ten thousand
            values).
        NotCanonical: a residue of a value is outside [0, q).
        OSError: the system reports an error, such as a full disk.

    Cost: one pass over the residues, and their SHA-256, which takes about 1 ns per byte. Values on a GPU are
    copied to the host one at a time. Nothing is compressed, because residues look random.
    Source: the docstring of the module polygpu.files describes the format.

    >>> import tempfile
    >>> import polygpu as pg
    >>> R = pg.Ring(4, [17, 97])
    >>> a, folder = R([[1, 2], [3, 4]]), tempfile.TemporaryDirectory()
    >>> pg.save(f"{folder.name}/x.safetensors", {"a": a.ntt(), "mask": pg.Seeded(R, batch=3, seed=1)})
    >>> values = pg.load(f"{folder.name}/x.safetensors")
    >>> values["a"] == a, values["a"].domain, values["mask"] == R.random(3, seed=1)
    (True, 'eval', True)
    >>> folder.cleanup()
    """
    if not isinstance(values, Mapping):
        raise ParameterError(
            f"values must be a dict of values by name, not {type(values).__name__}. Use "
            "pg.save(path, {'a': a})."
        )
    # A dict from a ring's arguments to its index in the file. The rings themselves are not the keys, because
    # comparing two rings might search for their roots.
    rings: dict[Any, int] = {}

    def index_of(ring: Ring) -> int:
        return rings.setdefault(ring.__reduce__()[1], len(rings))

    told: dict[str, dict[str, Any]] = {}
    stored: dict[str, Poly] = {}
    for name, value in values.items():
        _check_name(name)
        if not isinstance(value, (Poly, Seeded, SwitchKey)):
            raise ParameterError(
                f"values[{_named(name)}] must be a Poly, Seeded or SwitchKey, not {type(value).__name__}. "
                "Use ring(x) to make a Poly of integers, or ring.from_residues(x) to make one of residues."
            )
        if isinstance(value, SwitchKey):
            stored[name] = value._stored()
            told[name] = {
                "ring": index_of(value.value.ring),
                "domain": "eval",
                "key": {
                    "ring": index_of(value.ring),
                    "special": index_of(value.special),
                    "limbs_per_digit": value.limbs_per_digit,
                    "galois_element": -1 if value.galois_element is None else value.galois_element,
                    "turned": int(value.turned),
                    "masks": [seed.hex() for seed in value._masks or ()],
                },
            }
            continue
        index = index_of(value.ring)
        if isinstance(value, Poly):
            stored[name] = value
            told[name] = {"ring": index, "domain": value.domain}
        else:
            batch = list(cast(tuple[int, ...], value.batch))
            told[name] = {"ring": index, "batch": batch, "seed": _seed_told(value.seed), "start": value.start}
    tensors, size = {}, 0
    # Values with words of 8 bytes come before those with words of 4 bytes, so that all words are aligned.
    for name in sorted(stored, key=lambda name: -stored[name].data.itemsize):
        data = stored[name].data
        kind = next(kind for kind, dtype in _DTYPES.items() if dtype == data.dtype)
        tensors[name] = {"dtype": kind, "shape": [*data.shape], "data_offsets": [size, size + data.nbytes]}
        size += data.nbytes
    described = [ring_entry(parameters) for parameters in rings]
    digests = {
        name: _digest(name, described[value["ring"]], value, tensors.get(name))
        for name, value in told.items()
    }

    def header() -> bytes:
        with_digests = {name: {**value, "sha256": digests[name].hexdigest()} for name, value in told.items()}
        return _header_of(tensors, {"format": _FORMAT, "rings": described, "values": with_digests})

    try:  # check the header as load() does, so that load() can read the file
        contents = _Contents(header(), size)
        for index in range(len(described)):
            contents.ring(index)
    except Flaw as flaw:
        raise ParameterError(f"values cannot be saved: {flaw.reason} {flaw.way}") from None
    with replacing(_name_of(path, ParameterError)) as file:
        text = header()
        file.write(len(text).to_bytes(8, "little") + text)
        for name in tensors:
            value = stored[name].cpu()
            if at := first_wrong(value.ring._plan.basis, value.data):
                raise NotCanonical(
                    f"In values[{_named(name)}], {wrong_residue(value.ring._plan.basis, value.data, at)}. "
                    "Use ring(x) to make a Poly of any integers."
                )
            for piece in _pieces(value.data):
                digests[name].update(piece)
                file.write(piece)
        file.seek(8)
        file.write(header())  # write the header again, now with the final digests; its length is the same


def _header_of(tensors: dict[str, Any], told: dict[str, Any]) -> bytes:
    """Return the bytes of the header, padded with spaces so that residues begin at a multiple of 64 bytes.

    tensors: the entries of values with residues. told: the object for the entry "__metadata__".
    """
    text = _compact({"__metadata__": {"polygpu": _compact(told)}, **tensors})
    return text.encode() + b" " * (-(8 + len(text)) % _ALIGNMENT)


def _compact(x: Any, *, sort_keys: bool = False) -> str:
    import json  # here, so that importing polygpu stays fast

    return json.dumps(x, separators=(",", ":"), sort_keys=sort_keys)


def _digest(name: str, ring: dict[str, Any], value: dict[str, Any], tensor: dict[str, Any] | None) -> Any:
    """Return a SHA-256 object that has hashed the description of a value. The caller adds the residues."""
    import hashlib  # here, so that importing polygpu stays fast

    described = {**value, "name": name, "ring": ring}
    described.pop("sha256", None)
    if tensor is not None:
        described |= {"dtype": tensor["dtype"], "shape": tensor["shape"]}
    return hashlib.sha256(_compact(described, sort_keys=True).encode() + b"\n")


def ring_entry(parameters: tuple[Any, ...]) -> dict[str, Any]:
    """Return the arguments of a Ring as a dict that JSON can hold."""
    n, moduli, kind, root, product = parameters
    return {
        "n": n,
        "moduli": [int_text(q) for q in moduli],
        "kind": kind,
        "root": root if isinstance(root, str) else [int_text(x) for x in root],
        "product": product,
    }


def int_text(x: int) -> str:
    """Return an int as a string: decimal up to 2^64, else hexadecimal. Python limits long decimals."""
    return str(x) if x <= 1 << 64 else hex(x)


def _seed_told(seed: Seed) -> dict[str, str]:
    if isinstance(seed, bytes):
        return {"bytes": seed.hex()}
    return {"str": seed} if isinstance(seed, str) else {"int": hex(cast(int, seed))}


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise ParameterError(f"The name {shown(name)} in values must be a str, not {type(name).__name__}.")
    if name == "__metadata__":
        raise ParameterError("The name '__metadata__' in values belongs to safetensors. Give another name.")
    if not _is_utf8(name):
        raise ParameterError(f"The name {_named(name)} in values has no UTF-8 form. Give another name.")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _named(name: object) -> str:
    """Return `name` for an error message: cut if it is long, or its type if it is not a str."""
    text = ascii(name) if isinstance(name, str) else type(name).__name__
    return text if len(text) <= 60 else f"{text[:56]}...'"


def _pieces(data: Array) -> Iterator[memoryview]:
    """Iterate over the bytes of a C-contiguous array, in pieces that fit a cache."""
    whole: memoryview = data.reshape(-1).view(np.uint8).data
    return (whole[i : i + _PIECE] for i in range(0, len(whole), _PIECE))


# ---- checks that residues are in [0, q) ----


def first_wrong(basis: Basis, data: Array) -> tuple[int, ...] | None:
    """Return the index (*batch, row, coefficient) of the first residue outside [0, q), or None.

    Unlike the check inside `with polygpu.debug()`, this function allocates no array of the size of `data`,
    and no Python ints for moduli above 2^64.
    """
    if not data.size:
        return None
    if not basis.wide:
        limits = np.array([q - 1 for q in basis.moduli], np.uint64)
        rows = np.argwhere(data.max(axis=-1) > limits)
        if not len(rows):
            return None
        row = tuple(int(i) for i in rows[0])
        return (*row, int(np.argmax(data[row] > limits[row[-1]])))
    q = basis.residues(-1)[:, 0]  # the words of q - 1
    shape = (*data.shape[:-2], data.shape[-1])
    # Compare the residues with q - 1, word by word, highest word first.
    above, equal = np.zeros(shape, bool), np.ones(shape, bool)
    for word in reversed(range(basis.rows)):
        above |= equal & (data[..., word, :] > q[word])
        equal &= data[..., word, :] == q[word]
    if not above.any():
        return None
    *batch, coefficient = (int(i) for i in np.argwhere(above)[0])
    return (*batch, 0, coefficient)


def wrong_residue(basis: Basis, data: Array, at: tuple[int, ...]) -> str:
    """Return the clause of an error message that names the wrong residue at index `at`, and its modulus.

    at: an index that first_wrong returned.
    """
    modulus, value = basis.moduli[at[-2]], int(data[at])
    if basis.wide:
        words = data[at[:-2]][:, at[-1]].tolist()
        value = sum(word << 64 * i for i, word in enumerate(words))
    return f"{shown(value)} at {at} is not a residue modulo {shown(modulus)}"


# ---- reading ----


def load(
    path: str | os.PathLike[str],
    names: Iterable[str] | None = None,
    *,
    device: str | None = None,
    verify: bool = True,
    mmap: bool = False,
) -> dict[str, Any]:
    """Read values and keys by name from a file that polygpu.save wrote. Nothing in the file is executed.

    The file is not trusted: the arguments of each ring are checked as in a call of Ring, and each residue is
    checked to be in [0, q). Values that shared a ring when they were saved share one Ring object. Each Seeded
    in the file is expanded to a Poly.

    Args:
        path: the path of the file.
        names: the names of the values to read, by default all. Residues of other values are not read.
        device: the device for the values, by default the current device (see polygpu.device).
        verify: True, the default, compares the SHA-256 of each value with the one in the file. SHA-256 covers
            the residues, the name and the ring of the value. If a byte of the file was changed and this
            affects a value, the call raises FileError. The SHA-256 shows damage but not forgery:
            whoever writes the file can write another SHA-256.
        mmap: True leaves the residues in the file and maps the file into memory, read-only. Use it for values
            that exceed the memory, and for files that several processes read. A file is mapped once for all
            its values, and no file descriptor stays open. If v is such a value, `out=v` and `v[i] = x`
            raise OutputError; v.copy() is writable. The file must not change while the values are in use.
            polygpu.save never changes a file, since it writes a new one. But if another process shortens the
            file, a bus error ends the process that reads the values. False, the default, copies the residues
            from the file into memory.

    Returns:
        A dict from names to values, in the order of `names`, or by default in the order of the file.

    Raises:
        FileError: the file is truncated or damaged, or polygpu.save did not write it. The message says what
            is wrong.
        ParameterError: a name is not in the file.
        OutOfHostMemory, OutOfDeviceMemory: a value does not fit. A Seeded takes more bytes in memory than in
            the file. The command `polygpu info FILE` says how many.
        BackendUnavailable: `device` is a GPU that cannot be used.
        OSError: the system reports an error, such as FileNotFoundError.

    Cost: about 0.5 ns per byte to read residues and check their range, or 0.2 ns with mmap=True. SHA-256
    takes 1 ns per byte. If a ring has evaluated values or explicit roots, its moduli are tested for
    primality.

    >>> import tempfile
    >>> import polygpu as pg
    >>> R = pg.Ring(4, 17)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pg.save(f"{folder}/x.safetensors", {"a": R([1, 2]), "b": R([3])})
    ...     print(pg.load(f"{folder}/x.safetensors", ["b"]))
    {'b': Poly(n=4, q=17, domain=coef, shape=(), device=cpu, centered=[3, 0, 0, 0])}
    """
    if isinstance(names, (str, bytes)):
        raise ParameterError(f"names={shown(names)} must be a list of names. Use names=[{shown(names)}].")
    with nullcontext() if device is None else on_device(device), opened(path) as file:
        chosen = list(file.entries) if names is None else list(names)
        for name in chosen:
            if name not in file.entries:
                there = ", ".join(map(_named, list(file.entries)[:8])) + ", ..." * (len(file.entries) > 8)
                raise ParameterError(
                    f"names contains {_named(name)}, which is not in {file.path}. The file has "
                    f"{there or 'no values'}."
                )
        return {name: file.read(name, verify=verify, mmap=mmap).to() for name in chosen}


class Flaw(Exception):
    """An error in a file: `reason` says what is wrong, and `way` says what to do. Both end with a period."""

    def __init__(self, reason: str, way: str = DAMAGED) -> None:
        self.reason, self.way = reason, way


@dataclass(frozen=True)
class Entry:
    """The description of one value in the header of a file."""

    ring: int
    batch: tuple[int, ...]
    domain: Domain
    told: dict[str, Any]
    tensor: dict[str, Any] | None  # None for a Seeded, which has no residues in the file
    seed: Seed = None
    start: int = 0
    key: dict[str, Any] | None = None  # for a SwitchKey, its "key" in the header

    @property
    def size(self) -> int:
        """Number of bytes of the value's residues in the file; 0 if only a seed is stored."""
        if self.tensor is None:
            return 0
        begin, end = self.tensor["data_offsets"]
        return int(end - begin)


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[File]:
    """Open a file that polygpu.save wrote, and yield a File. The end of the `with` block closes the File.

    Raises:
        FileError: `path` is not a valid name or not a regular file, or the header is wrong.
    """
    name = _name_of(path, FileError)
    with open(name, "rb", buffering=0, opener=_regular) as file:
        yield File(name, file)


def _name_of(path: str | os.PathLike[str], wrong: type[PolyGPUError]) -> str:
    """Return the path as a str. Raise the error `wrong` if no file can have this name."""
    name = os.fsdecode(path)
    try:
        os.lstat(name)
    except OSError:
        pass  # the file may not exist yet; if it must, open() raises an error later
    except ValueError as error:  # the name has a null byte, or a character that cannot be encoded
        raise wrong(f"{name!r} is not a name that a file can have ({error}). Give another name.") from None
    return name


def _regular(name: str, flags: int) -> int:
    handle = os.open(name, flags | os.O_NONBLOCK)  # without O_NONBLOCK, opening a pipe waits for a writer
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileError(f"{name} is a folder, pipe or device. Give the name of a file of pg.save.")
    return handle


class File:
    """An open file. The constructor checks the header, and read() reads one value at a time."""

    def __init__(self, path: str, file: io.FileIO) -> None:
        self.path, self._file = path, file
        self._map: memoryview | None = None
        self.size = os.fstat(file.fileno()).st_size
        with self._told():
            length = int.from_bytes(self._bytes(8), "little")
            if length > self.size - 8:
                raise Flaw(
                    f"it is cut, or it is not a safetensors file. It has {self.size} bytes, but its first 8 "
                    f"bytes announce a header of {length} bytes."
                )
            if length > _LONGEST_HEADER:
                raise Flaw(f"its header has {length} bytes, and at most {_LONGEST_HEADER} are allowed.")
            self._data = 8 + length
            self._contents = _Contents(self._bytes(length), self.size - self._data)
        self.entries, self.rings = self._contents.entries, self._contents.rings

    @contextmanager
    def _told(self, where: str = "") -> Iterator[None]:
        try:
            yield
        except Flaw as flaw:
            raise FileError(f"{self.path}: {where}{flaw.reason} {flaw.way}") from None
        except ParameterError as error:
            raise FileError(f"{self.path}: {where}{error} {DAMAGED}") from None

    def ring(self, index: int) -> Ring:
        """Return the ring with this index in the file. Calls with the same index return the same object."""
        with self._told():
            return self._contents.ring(index)

    def read(self, name: str, *, verify: bool = True, mmap: bool = False) -> Poly | SwitchKey:
        """Return a Poly or key in host memory; see polygpu.load. Expand a Seeded on the current device."""
        entry, told = self.entries[name], self._contents.rings
        with self._told(f"value {_named(name)}: "):
            ring = self._contents.ring(entry.ring)
            digest = _digest(name, told[entry.ring], entry.told, entry.tensor)
            data = None
            if entry.tensor is not None:
                data = self._residues(ring, entry.tensor, mmap, digest.update if verify else lambda _: None)
            if verify and digest.hexdigest() != entry.told["sha256"]:
                raise Flaw("its SHA-256 is not the one that the header gives, so a byte has changed.")
            if data is None:
                return Seeded(ring, entry.batch, seed=entry.seed, start=entry.start).expand()
            if at := first_wrong(ring._plan.basis, data):
                raise Flaw(f"{wrong_residue(ring._plan.basis, data, at)}.")
            value = ring.from_residues(data, domain=entry.domain, copy=False)
            return value if entry.key is None else self._key(value, entry.key)

    def _key(self, stored: Poly, told: dict[str, Any]) -> SwitchKey:
        g, masks = told["galois_element"], tuple(map(bytes.fromhex, told["masks"]))
        options: dict[str, Any] = {
            "ring": self._contents.ring(told["ring"]),
            "special": self._contents.ring(told["special"]),
            "limbs_per_digit": told["limbs_per_digit"],
            "galois_element": None if g < 0 else g,
            "turned": bool(told["turned"]),
        }
        if masks and stored.shape != (len(masks),):
            raise Flaw(f"its {len(masks)} masks do not fit bodies of batch shape {stored.shape}.")
        try:
            with on_device("cpu"):
                return expanded(stored, masks, **options) if masks else SwitchKey(stored, **options)
        except PolyGPUError as error:
            raise Flaw(f"its key is not valid. {error}") from None

    def _residues(
        self, ring: Ring, tensor: dict[str, Any], mmap: bool, seen: Callable[[memoryview], None]
    ) -> Array:
        """Read the residues of one value.

        ring: the ring of the value. tensor: its entry in the header. mmap: see polygpu.load. seen: function
        that is called with the bytes of each piece of the residues, in order.
        """
        shape, dtype, (begin, end) = tuple(tensor["shape"]), _DTYPES[tensor["dtype"]], tensor["data_offsets"]
        if dtype != ring.dtype or shape[-2:] != (ring.rows, ring.n):
            expected = f"{ring.dtype} and a shape that ends in ({ring.rows}, {ring.n})"
            raise Flaw(f"its residues are {dtype} and have shape {shown(shape)}. {ring!r} needs {expected}.")
        place = self._data + begin
        if mmap and begin < end and place % dtype.itemsize == 0:
            data = self._mapped(place, end - begin, ring.dtype).reshape(shape)
            for piece in _pieces(data):
                seen(piece)
            return data
        data = empty(host(), shape, ring.dtype)
        self._file.seek(place)
        for piece in _pieces(data):
            done = 0
            while done < len(piece):
                count = self._file.readinto(piece[done:])
                if not count:
                    raise Flaw("it was cut while it was read.")
                done += count
            seen(piece)
        return data

    def _mapped(self, place: int, size: int, dtype: np.dtype[Any]) -> Array:
        if os.fstat(self._file.fileno()).st_size < place + size:
            raise Flaw("it was cut while it was read.")
        if self._map is None:
            self._map = _mapping(self._file.fileno(), self.size)
        return np.frombuffer(self._map, dtype, size // dtype.itemsize, place)

    def _bytes(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._file.read(count - len(data))
            if not part:
                raise Flaw(f"it is cut after {self._file.tell()} bytes.")
            data += part
        return data


def _mapping(handle: int, size: int) -> memoryview:
    """Map the first `size` bytes of a file into memory, read-only. Return a view of the memory.

    handle: the file descriptor. The caller may close it. The mapping ends when the view and all arrays in the
    memory are gone. Python's mmap.mmap would keep a file descriptor open for each mapping. (Python 3.13 has
    an argument trackfd=False against this.)
    """
    import ctypes  # here, so that importing polygpu stays fast
    import mmap
    import weakref

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise no_memory(size) if number == errno.ENOMEM else OSError(number, os.strerror(number))
    block = (ctypes.c_ubyte * size).from_address(address)
    # Unmap when `block` is garbage, but not when Python exits: arrays may be read until the process ends.
    weakref.finalize(block, libc.munmap, address, size).atexit = False
    return memoryview(block).toreadonly().cast("B")


class _Contents:
    """The checked header of a file. `entries` maps names to entries; ring(index) makes each ring once."""

    def __init__(self, header: bytes, size: int) -> None:
        if len(header) > _LONGEST_HEADER:
            raise Flaw(
                f"the header has {len(header)} bytes, and at most {_LONGEST_HEADER} are allowed.",
                "Join values into batches with pg.stack, or write several files.",
            )
        tensors = _parsed(header, "its header")
        if type(tensors) is not dict:
            raise Flaw("its header is not a JSON object.")
        metadata = tensors.pop("__metadata__", None)
        text = metadata.get("polygpu") if type(metadata) is dict else None
        if type(text) is not str:
            raise Flaw(
                "it does not name the rings of its values.",
                "Use pg.save to write files for pg.load, and ring.from_residues(array) for arrays from "
                "other files.",
            )
        told = _parsed(text.encode(errors="surrogatepass"), "its metadata")
        version = told.get("format") if type(told) is dict else None
        if type(version) is int and version > _FORMAT:
            raise Flaw(
                f"it has format {version}, and this polygpu knows only {_FORMAT}.", "Install a newer polygpu."
            )
        if type(version) is not int or version != _FORMAT:
            raise Flaw(f"its format must be {_FORMAT}.")
        _check_fields(told, {"format", "rings", "values"}, "its metadata")
        self.rings, values = told["rings"], told["values"]
        if type(self.rings) is not list or type(values) is not dict:
            raise Flaw("its metadata must have a list of rings, and a dict of values by name.")
        _check_tensors(tensors, size)
        self.entries = {name: self._entry(name, value, tensors.get(name)) for name, value in values.items()}
        if extra := tensors.keys() - values.keys():
            raise Flaw(f"value {_named(min(extra))}: the metadata names no ring for it.")
        self._made: dict[int, Ring] = {}

    def _entry(self, name: str, value: Any, tensor: dict[str, Any] | None) -> Entry:
        what = f"value {_named(name)}"
        if not _is_utf8(name):
            raise Flaw(f"{what}: its name has no UTF-8 form.")
        seeded = type(value) is dict and "seed" in value
        fields = {"ring", "batch", "seed", "start", "sha256"} if seeded else {"ring", "domain", "sha256"}
        has_key = type(value) is dict and "key" in value and not seeded
        _check_fields(value, fields | {"key"} if has_key else fields, what)
        key = value["key"] if has_key else None
        if key is not None:
            self._check_key(key, what)
        rings = [value["ring"], *((key["ring"], key["special"]) if key is not None else ())]
        for index in rings:
            if not _is_index(index) or index >= len(self.rings):
                raise Flaw(f"{what}: its ring must be one of the {len(self.rings)} rings in the file.")
        if type(value["sha256"]) is not str:
            raise Flaw(f"{what}: its SHA-256 must be a string.")
        if not seeded:
            if value["domain"] not in ("coef", "eval"):
                raise Flaw(f"{what}: its domain must be 'coef' or 'eval'.")
            if tensor is None:
                raise Flaw(f"{what}: its residues are missing.")
            batch = tuple(tensor["shape"][:-2])
            return Entry(value["ring"], batch, value["domain"], value, tensor, key=key)
        if tensor is not None:
            raise Flaw(f"{what}: it has residues and a seed, but it must have only one of the two.")
        if not _are_lengths(value["batch"]) or len(value["batch"]) > _MOST_AXES - 2:
            raise Flaw(f"{what}: its batch shape must have at most {_MOST_AXES - 2} lengths.")
        if not _is_index(value["start"]):
            raise Flaw(f"{what}: its start must be an int of at least 0.")
        seed = _seed_of(value["seed"], what)
        return Entry(value["ring"], tuple(value["batch"]), "coef", value, None, seed, value["start"])

    def _check_key(self, key: Any, what: str) -> None:
        fields = {"ring", "special", "limbs_per_digit", "galois_element", "turned", "masks"}
        _check_fields(key, fields, what)
        numbers = [key[name] for name in sorted(fields - {"masks"})]
        masks = key["masks"]
        if not all(type(x) is int and x >= -1 for x in numbers) or type(masks) is not list:
            raise Flaw(f"{what}: its key must have ints of at least -1 and a list of masks.")
        if not all(type(x) is str and re.fullmatch("[0-9a-f]{64}", x) for x in masks):
            raise Flaw(f"{what}: its masks must be seeds of 64 hexadecimal digits.")

    def ring(self, index: int) -> Ring:
        if index not in self._made:
            evaluated = any(e.ring == index and e.domain == "eval" for e in self.entries.values())
            self._made[index] = ring_of_entry(self.rings[index], f"ring {index}", evaluated)
        return self._made[index]


def _parsed(text: bytes, what: str) -> Any:
    """Parse JSON. Raise Flaw if an object has a name twice or a number is not an int of at most 20 digits.

    what: the name of the text in messages.
    """
    import json  # here, so that importing polygpu stays fast

    def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        named = dict(pairs)
        if len(named) < len(pairs):
            raise ValueError
        return named

    def short(digits: str) -> int:
        if len(digits) > 20:
            raise ValueError
        return int(digits)

    def refuse(_: str) -> None:
        raise ValueError

    hooks: dict[str, Any] = {"parse_int": short, "parse_float": refuse, "parse_constant": refuse}
    try:
        return json.loads(text.decode(), object_pairs_hook=named_once, **hooks)
    except (ValueError, RecursionError):
        raise Flaw(
            f"{what} must be JSON in which numbers are ints of at most 20 characters, and in which no object "
            "has a name twice."
        ) from None


def _check_fields(x: Any, fields: set[str], what: str) -> None:
    if type(x) is not dict or x.keys() != fields:
        raise Flaw(f"{what}: it must have {', '.join(sorted(fields))} and nothing else.")


def _is_index(x: Any) -> bool:
    return type(x) is int and x >= 0


def _are_lengths(x: Any) -> bool:
    return type(x) is list and all(map(_is_index, x))


def _check_tensors(tensors: dict[str, Any], size: int) -> None:
    """Raise Flaw unless the entries `tensors` of a header are valid and fill `size` bytes without gaps."""
    for name, x in tensors.items():
        what = f"value {_named(name)}"
        _check_fields(x, {"dtype", "shape", "data_offsets"}, what)
        if type(x["dtype"]) is not str or x["dtype"] not in _DTYPES:
            raise Flaw(f"{what}: its dtype {_named(x['dtype'])} must be U32 or U64.")
        if not _are_lengths(x["shape"]) or not 2 <= len(x["shape"]) <= _MOST_AXES:
            raise Flaw(f"{what}: its shape must have 2 to {_MOST_AXES} lengths.")
        if not _are_lengths(x["data_offsets"]) or len(x["data_offsets"]) != 2:
            raise Flaw(f"{what}: its offsets must be two numbers of bytes.")
        begin, end = x["data_offsets"]
        if end - begin != prod(x["shape"]) * _DTYPES[x["dtype"]].itemsize:
            raise Flaw(
                f"{what}: its bytes {begin} to {end} do not have the size of an array of shape "
                f"{shown(x['shape'])}."
            )
    at = 0
    for begin, end in sorted(x["data_offsets"] for x in tensors.values()):
        if begin != at:
            raise Flaw(
                f"residues end at byte {at}, and the next begin at byte {begin}. Values must follow each "
                "other without a gap."
            )
        at = end
    if at != size:
        raise Flaw(f"its header announces {at} bytes of residues, and {size} are there.")


def ring_of_entry(x: Any, what: str, evaluated: bool) -> Ring:
    """Return the ring that the parsed JSON object x describes. Raise Flaw if it does not describe a ring.

    what: the name of the ring in messages. evaluated: True if the file has evaluated values of this ring.
    """
    _check_fields(x, {"n", "moduli", "kind", "root", "product"}, what)
    moduli, root = x["moduli"], x["root"]
    if type(moduli) is not list or not 1 <= len(moduli) <= _MOST_LIMBS:
        raise Flaw(
            f"{what}: it must have a list of 1 to {_MOST_LIMBS} moduli.",
            "Save residues of other rings with numpy.save(file, a.data).",
        )
    if type(x["n"]) is not int:
        raise Flaw(f"{what}: its degree n must be an int.")
    for name, known in (("kind", KINDS), ("product", get_args(Product))):
        if x[name] not in known:
            raise Flaw(f"{what}: its {name} must be one of {', '.join(known)}.")
    moduli = [_number_of(q, what) for q in moduli]
    if root not in ("minimal", "generator"):
        if type(root) is not list or len(root) > _MOST_LIMBS:
            raise Flaw(
                f"{what}: its root must be 'minimal', 'generator' or a list of at most {_MOST_LIMBS} roots."
            )
        root = [_number_of(r, what) for r in root]
    bits = max(moduli).bit_length()
    if bits > _LONGEST_PRIME and (evaluated or type(root) is list):
        raise Flaw(
            f"{what}: it has a modulus of {bits} bits. With evaluated values or explicit roots, at most "
            f"{_LONGEST_PRIME} bits are allowed, because each modulus must be tested for primality.",
            "Save coefficients, a.intt(), in a ring with root='minimal'.",
        )
    try:
        return Ring(x["n"], moduli, kind=x["kind"], root=root, product=x["product"])
    except ParameterError as error:
        raise Flaw(f"{what}: {error}") from None


def _number_of(text: Any, what: str) -> int:
    if type(text) is str and re.fullmatch(_NUMBER, text):
        x = int(text, 0)
        if int_text(x) == text:
            return x
    raise Flaw(
        f"{what}: {_named(text)} must be a number as a string. The number must be decimal if it is at most "
        "2^64, and hexadecimal with 0x if it is larger."
    )


def _seed_of(x: Any, what: str) -> int | bytes | str:
    kind, text = next(iter(x.items())) if type(x) is dict and len(x) == 1 else (None, None)
    if type(text) is str:
        if kind == "str" and _is_utf8(text):
            return text
        if kind == "int" and re.fullmatch(_SEED, text) and hex(int(text, 16)) == text:
            return int(text, 16)
        if kind == "bytes":
            with suppress(ValueError):
                seed = bytes.fromhex(text)
                if seed.hex() == text:
                    return seed
    raise Flaw(f"{what}: its seed must be an int in hexadecimal, bytes in hexadecimal or a str.")


# ---- atomic replacing and renaming of files ----


@contextmanager
def replacing(path: str) -> Iterator[io.BufferedWriter]:
    """Yield a new file to write to. At the end of the `with` block, the new file is renamed to `path`.

    Until then it has a temporary name in the same folder, and a reader of `path` sees the old file. If the
    block raises an error, the new file is removed. If `path` is a symbolic link, the link is kept, and the
    file to which it points is replaced. The new file gets no permission that the old file does not have.

    Raises:
        ParameterError: the file cannot be written.
    """
    name, mode = os.path.realpath(path), 0o666
    if os.path.exists(name):
        if not (os.path.isfile(name) and os.access(name, os.W_OK)):
            raise ParameterError(f"{path} is not a regular file that may be written. Give another name.")
        mode = stat.S_IMODE(os.stat(name).st_mode)
    neighbour = os.path.join(os.path.dirname(name), f".polygpu-{os.urandom(8).hex()}")
    try:
        handle = os.open(neighbour, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:
        raise ParameterError(
            f"{path} cannot be written ({error.strerror}). Give a file in a folder that can be written."
        ) from None
    try:
        with open(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(handle)
        os.replace(neighbour, name)
    except BaseException:
        with suppress(OSError):
            os.unlink(neighbour)
        raise


def give_name(temporary: str | os.PathLike[str], name: str | os.PathLike[str]) -> None:
    """Rename the file or folder `temporary` to `name` in the same folder, if `name` does not exist yet.

    Raises:
        OutputError: `name` exists, even if another process created it a moment ago.
    """
    try:
        if os.path.isdir(temporary):
            os.rename(temporary, name)  # fails if `name` exists, unless it is an empty folder
            return
        try:
            os.link(temporary, name)  # fails if `name` exists, while a rename would replace a file
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            os.rename(temporary, name)  # no hard links on this file system; this may replace a file
        else:
            os.unlink(temporary)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise OutputError(
            f"path={os.fsdecode(name)!r} exists. Remove it first, or give another name."
        ) from None
