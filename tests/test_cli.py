"""The command line: outputs, exit status, files, bad input."""

import errno
import io
import json
import os
import re
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tracemalloc
import tty
import warnings
import zipfile
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from devices import ABSENT, needs_card

import polygpu as pg
from polygpu.cli import main
from polygpu.testing import multiply_integers


@pytest.fixture
def files(tmp_path):
    """A batch of signed integers, a single row of them, and the folder of their files."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(-100, 100, (3, 8)), rng.integers(-100, 100, 8)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    return a, b, tmp_path


def call(*arguments):
    return main([str(a) for a in arguments])


COMMANDS = {"module": [sys.executable, "-m", "polygpu"], "script": ["polygpu"]}


def environment(**changes):
    """The environment of a subprocess that finds the console script, and buffers output as Python does."""
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, "PATH": path, **{name: str(value) for name, value in changes.items()}}


def run(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE):
    """The console script in a process of its own, which never takes long."""
    command = ["polygpu", *map(str, arguments)]
    return subprocess.run(command, stdout=stdout, stderr=stderr, env=environment(), timeout=60)


def test_info(capsys):
    assert call("info") == 0
    text = capsys.readouterr().out
    assert "avx" in text or "portable" in text
    assert call("info", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["polygpu"] == pg.__version__ and facts["gpu"].startswith("none: ") == (ABSENT is not None)
    assert facts["cpu"]["threads"] >= 1 and "processor quota" in facts["cpu"]


def test_demo(capsys):
    assert call("demo", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] and len(facts["rows"]) >= 5 and all(row["ok"] for row in facts["rows"])
    notes = {row["name"].split()[0]: row["note"] for row in facts["rows"]}
    assert notes["ML-KEM-768"] == ""
    assert all(re.search(r"\d", notes[scheme]) for scheme in ("BFV", "PIR", "CKKS", "TFHE"))
    assert call("demo") == 0
    shown = capsys.readouterr().out
    assert "ML-KEM-768" in shown and "bits of noise budget left" in shown and "by theory" in shown


def test_a_wrong_demo_is_seen(capsys, monkeypatch):
    monkeypatch.setattr("polygpu.examples.ml_kem.decaps", lambda p, dk, c: [bytes(32)] * len(c))
    assert call("demo") == 1
    captured = capsys.readouterr()
    assert "WRONG" in captured.out and "demo" in captured.err


@pytest.mark.parametrize("kind", ["negacyclic", "cyclic"])
@pytest.mark.parametrize("moduli", [[17], [2**64], [97, 193, 257], [2**64 - 2**32 + 1]])
def test_mul(files, kind, moduli, capsys):
    a, b, folder = files
    q = [part for m in moduli for part in ("--q", m)]
    assert (
        call("mul", folder / "a.npy", folder / "b.npy", "-o", folder / "c.npy", "--n", 8, *q, "--kind", kind)
        == 0
    )
    modulus = pg.Ring(8, moduli).modulus
    expected = [multiply_integers(row, b.tolist(), modulus, kind) for row in a.tolist()]
    assert np.load(folder / "c.npy").astype(object).tolist() == expected
    assert sorted(p.name for p in folder.iterdir()) == ["a.npy", "b.npy", "c.npy"]


def test_mul_beyond_words_writes_residues(files, capsys):
    a, b, folder = files
    primes = pg.ntt_primes(8, 60, 2)
    arguments = ["mul", folder / "a.npy", folder / "b.npy", "-o", folder / "c.npy", "--n", 8, "--json"]
    assert call(*arguments, "--q", primes[0], "--q", primes[1]) == 0
    assert "residues" in json.loads(capsys.readouterr().out)["holds"]
    ring = pg.Ring(8, primes)
    assert ring.from_residues(np.load(folder / "c.npy")) == ring(a) * ring(b)


def test_mul_refuses_bad_files_and_leaves_the_output_alone(files, capsys):
    _, _, folder = files
    good, out = folder / "a.npy", folder / "c.npy"
    out.write_bytes(b"before")
    cut = folder / "cut.npy"
    cut.write_bytes(good.read_bytes()[:-5])
    text = folder / "text.npy"
    text.write_text("1 2 3")
    empty = folder / "empty.npy"
    empty.write_bytes(b"")
    objects = folder / "objects.npy"
    np.save(objects, np.array([1, 2, 2**80], dtype=object), allow_pickle=True)
    floats = folder / "floats.npy"
    np.save(floats, np.array([1.0, 2.0]))
    archive = folder / "archive.npz"
    np.savez(archive, a=np.arange(3))
    long = folder / "long.npy"
    np.save(long, np.arange(9))
    for path, reason in {
        folder / "absent.npy": "no such file",
        cut: "not a whole .npy file",
        text: "not a whole .npy file",
        empty: "not a whole .npy file",
        objects: "--residues",
        floats: "float64",
        archive: "archive",
        long: "9 coefficients",
        folder: "not a whole .npy file",
    }.items():
        assert call("mul", path, good, "-o", out, "--n", 8, "--q", 17) == 2
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1, error
        assert out.read_bytes() == b"before"
    assert call("mul", good, good, "-o", out, "--n", 0, "--q", 17) == 2
    assert call("mul", good, good, "-o", out, "--n", 8, "--q", 1) == 2
    assert call("mul", good, good, "-o", out, "--n", 8, "--q", 4, "--q", 6) == 2
    assert call("mul", good, good, "-o", folder / "no" / "c.npy", "--n", 8, "--q", 17) == 2
    assert out.read_bytes() == b"before"


def test_selftest_tests_every_instruction_set(capsys):
    from polygpu import _cpu

    before = _cpu.isa()
    assert call("selftest", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] and {c["isa"] for c in facts["checks"]} == set(_cpu.supported_isas())
    assert facts["seconds"] < 30 and _cpu.isa() == before


@pytest.mark.skipif(ABSENT is None, reason="a GPU answers")
def test_selftest_without_a_card(capsys):
    assert call("selftest", "--device", "cuda") == 2
    assert "pip install" in capsys.readouterr().err


@pytest.mark.gpu
@needs_card
def test_selftest_on_a_card(capsys):
    assert call("selftest", "--device", "cuda") == 0
    assert " 0 failed" in capsys.readouterr().out


def test_selftest_of_the_definitions(capsys):
    assert call("selftest", "--device", "reference") == 0
    assert " 0 failed" in capsys.readouterr().out


def test_selftest_sees_a_wrong_product(capsys, monkeypatch):
    monkeypatch.setattr(
        "polygpu._backends.cpu.CpuBackend.multiply", lambda self, plan, a, b, out: out.fill(0)
    )
    assert call("selftest") == 1
    assert "product in Ring" in capsys.readouterr().out


def test_module_and_script_run(tmp_path):
    for command in COMMANDS.values():
        done = subprocess.run(
            [*command, "info"], capture_output=True, text=True, env=environment(), timeout=60
        )
        assert done.returncode == 0 and "polygpu" in done.stdout, done.stderr


def test_wrong_calls_exit_with_2():
    for arguments in ([], ["nothing"], ["mul"], ["mul", "a", "b", "-o", "c", "--n", "x", "--q", "3"]):
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        assert exit.value.code == 2


def test_read_only_home():
    """No cache can be written: everything works, nothing is printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("POLYGPU", "XDG"))}
    done = subprocess.run(
        [sys.executable, "-c", "import polygpu as pg; print(pg.Ring(4, 17)([0, 1]).ntt().data.tolist())"],
        capture_output=True,
        text=True,
        env={**environment, "HOME": "/proc/nowhere"},
    )
    assert done.stdout.strip() == "[[2, 15, 8, 9]]" and done.stderr == ""


def test_mul_of_residues_takes_its_own_output(files, capsys):
    """Beyond words the product is residues, and residues can be multiplied again."""
    a, b, folder = files
    modulus = 2**70 + 25
    command = ["mul", folder / "a.npy", folder / "b.npy", "-o", folder / "c.npy", "--n", 8, "--q", modulus]
    assert call(*command) == 0
    ring = pg.Ring(8, modulus)
    np.save(folder / "b.npy", ring(b).data)
    again = ["mul", folder / "c.npy", folder / "b.npy", "-o", folder / "d.npy", "--n", 8, "--q", modulus]
    assert call(*again, "--residues") == 0
    assert ring.from_residues(np.load(folder / "d.npy")) == ring(a) * ring(b) * ring(b)
    np.save(folder / "b.npy", np.full((2, 8), 2**64 - 1, np.uint64))
    assert call(*again, "--residues") == 2
    assert "is not a residue" in capsys.readouterr().err


# ---- where the product goes ----


# ---- what a terminal cannot show, and what is empty ----


@contextmanager
def ascii_streams(monkeypatch):
    """Standard streams that take ASCII alone, and a function that returns what was written."""
    streams = {name: io.TextIOWrapper(io.BytesIO(), "ascii", "strict") for name in ("stdout", "stderr")}
    with monkeypatch.context() as patch:
        for name, stream in streams.items():
            patch.setattr(sys, name, stream)
        yield lambda: "".join(stream.buffer.getvalue().decode("ascii") for stream in streams.values())
        assert {stream.errors for stream in streams.values()} == {"strict"}


def test_every_command_writes_into_ascii(files, monkeypatch):
    """Help, reports and errors, with names of files, values and machines that ASCII does not have."""
    from test_bench import row

    from polygpu._bench import bench

    _, _, folder = files
    monkeypatch.chdir(folder)
    name = "Größe \udcff"
    os.rename("a.npy", name + ".npy")
    pg.save(name + ".safetensors", {"é": pg.Ring(8, 17)([1])})
    (folder / "rows").write_text(bench.line_of(row(op="product", machine={**row().machine, "name": name})))
    monkeypatch.setattr(bench, "measure_here", lambda devices, told: [row(op="product")])
    monkeypatch.setattr(bench, "answering", lambda: ["cpu"])
    ring = ["--n", "8", "--q", "17"]
    for status, *command in (
        *(
            (0, command, "--help")
            for command in ("mul", "convert", "info", "demo", "selftest", "bench", "plot")
        ),
        (0, "--help"),
        (2, "mul", "ü"),
        (0, "info"),
        (0, "info", name + ".safetensors"),
        (2, "info", "ü"),
        (0, "mul", name + ".npy", "b.npy", "-o", name + "2.npy", *ring),
        (2, "mul", "ü", "b.npy", "-o", name + "2.npy", *ring),
        (2, "mul", name + ".npy", "b.npy", "-o", "ü/c.npy", *ring),
        (2, "mul", name + ".npy", "b.npy", "-o", "c.npy", "--n", "0", "--q", "17"),
        (0, "convert", name + ".safetensors", name + ".npz"),
        (2, "convert", name + ".safetensors", "ü"),
        (2, "convert", name + ".npz", "x.npy", "--name", "ü"),
        (0, "plot"),
        (0, "plot", "rows"),
        (2, "plot", "ü"),
        (0, "bench", "--out", "ü"),
    ):
        for more in ([], ["--json"]) if command[-1] != "--help" else ([],):
            with ascii_streams(monkeypatch) as written:
                try:
                    found = main([*command, *more])
                except SystemExit as exit:
                    found = exit.code
                assert found == status and written(), command
                assert "Traceback" not in written()


def test_ascii_in_a_process(tmp_path):
    """With the C locale, in which Python chooses ASCII itself if it is kept from UTF-8."""
    changes = {"LC_ALL": "C", "PYTHONUTF8": 0, "PYTHONCOERCECLOCALE": 0}
    for more in ({**changes}, {"PYTHONIOENCODING": "ascii"}):
        command = ["polygpu", "info", str(tmp_path / "é.safetensors")]
        done = subprocess.run(command, capture_output=True, env=environment(**more), timeout=60)
        assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"No such file" in done.stderr


def test_empty_inputs(tmp_path, monkeypatch, capsys):
    """Nothing in a batch, a polynomial, an archive or a file: a result without values, or one line."""
    monkeypatch.chdir(tmp_path)
    ring = ["--n", 8, "--q", 17]
    for shape, result in {(0,): (8,), (3, 0): (3, 8), (0, 8): (0, 8), (2, 0, 5): (2, 0, 8), (): (8,)}.items():
        np.save("a.npy", np.zeros(shape, int))
        np.savez("a.npz", a=np.zeros(shape, int))
        assert call("mul", "a.npy", "a.npy", "-o", "c.npy", *ring) == 0
        assert np.load("c.npy").shape == result and not np.load("c.npy").any()
        for source in ("a.npy", "a.npz"):
            assert call("convert", source, "c.safetensors", *ring) == 0
            assert call("info", "c.safetensors") == 0
            value = pg.load("c.safetensors")["a"]
            assert value.shape == result[:-1] and value == 0
    S = pg.Ring(8, [2**61 - 1, 2**31 - 1])
    values = {"a": S.zeros((2, 0)), "e": pg.Ring(8, 17).zeros(0).ntt(), "s": pg.Seeded(S, 0, 1)}
    pg.save("x.safetensors", values)
    for more in ([], ["--residues"]):
        assert call("convert", "x.safetensors", "x.npz", *more) == 0
        assert call("convert", "x.npz", "y.safetensors", *more) == 0
        found = pg.load("y.safetensors")
        assert [(x.shape, x.domain) for x in found.values()] == [
            ((2, 0), "coef"),
            ((0,), "eval"),
            ((0,), "coef"),
        ]
    pg.save("none.safetensors", {})
    np.savez("none.npz")
    for name in ("empty.npy", "empty.npz", "empty.safetensors"):
        open(name, "wb").close()
    capsys.readouterr()
    for status, reason, *command in (
        (0, "values 0, rings 0", "info", "none.safetensors"),
        (0, '"values": []', "info", "none.safetensors", "--json"),
        (0, "values 0", "convert", "none.safetensors", "c.npz"),
        (0, "values 0", "convert", "none.npz", "c.safetensors"),
        (2, "holds no value", "convert", "none.npz", "c.npy"),
        (2, "holds no value", "convert", "none.safetensors", "c.npy"),
        (2, "is not in", "convert", "none.safetensors", "c.npy", "--name", "a"),
        (2, "is not in", "convert", "none.npz", "c.npy", "--name", "a"),
        *((2, "cut after 0 bytes", "info", f"empty.{ending}") for ending in ("npy", "npz", "safetensors")),
        (2, "not a whole .npy", "convert", "empty.npy", "c.npz", *ring),
        (2, "not a whole .npz", "convert", "empty.npz", "c.npy", *ring),
        (2, "cut after 0 bytes", "convert", "empty.safetensors", "c.npy"),
        (2, "not a whole .npy", "mul", "empty.npy", "a.npy", "-o", "c.npy", *ring),
        (2, "archive", "mul", "none.npz", "a.npy", "-o", "c.npy", *ring),
    ):
        assert call(*command) == status, command
        out, error = capsys.readouterr()
        assert reason in (error if status else out), (command, out, error)
        assert error.count("\n") == bool(status)


@pytest.fixture
def multiply(files):
    """What makes the arguments of `mul` for an output; the bytes that a whole product has; the folder."""
    a, b, folder = files
    product = [multiply_integers(row, b.tolist(), 17, "negacyclic") for row in a.tolist()]
    whole = io.BytesIO()
    np.save(whole, np.array(product))

    def arguments(out, *others):
        return ["mul", folder / "a.npy", folder / "b.npy", "-o", out, "--n", 8, "--q", 17, *others]

    return arguments, whole.getvalue(), folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def everything(descriptor):
    """What can be read within a moment: an empty pipe or terminal does not make a test wait."""
    text = b""
    while select.select([descriptor], [], [], 0.2)[0] and (part := os.read(descriptor, 1 << 16)):
        text += part
    return text


def test_mul_writes_through_a_pipe(multiply, capsys):
    arguments, whole, folder = multiply
    os.mkfifo(folder / "pipe")
    reader = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)  # so that a writer need not wait
    (folder / "link").symlink_to("pipe")
    try:
        for name in ("pipe", "link", f"/dev/fd/{reader}"):
            assert call(*arguments(folder / name)) == 0
            assert everything(reader) == whole
            captured = capsys.readouterr()
            assert captured.out == "" and "shape (3, 8)" in captured.err
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(os.lstat(folder / "pipe").st_mode) and (folder / "link").is_symlink()
    assert names(folder) == ["a.npy", "b.npy", "link", "pipe"]


def test_mul_writes_through_a_terminal(multiply, capsys):
    arguments, whole, _ = multiply
    here, there = os.openpty()
    try:
        tty.setraw(there)
        assert call(*arguments(os.ttyname(there), "--json")) == 0
        assert everything(here) == whole
    finally:
        os.close(here), os.close(there)
    captured = capsys.readouterr()
    assert captured.out == "" and json.loads(captured.err)["shape"] == [3, 8]


def test_mul_leaves_a_device_a_device(multiply):
    """On a node of the test's own: a wrong program would replace that of the machine."""
    arguments, _, folder = multiply
    try:
        os.mknod(folder / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.close(os.open(folder / "null", os.O_WRONLY))
    except OSError:
        pytest.skip("no device nodes here")
    for _ in range(2):
        assert call(*arguments(folder / "null")) == 0
        assert stat.S_ISCHR(os.lstat(folder / "null").st_mode)
    assert names(folder) == ["a.npy", "b.npy", "null"]


def test_mul_goes_on_after_a_part(multiply, monkeypatch):
    arguments, whole, folder = multiply
    write = os.write
    monkeypatch.setattr("os.write", lambda file, data: write(file, data[:7]))
    assert call(*arguments(folder / "c.npy")) == 0
    assert (folder / "c.npy").read_bytes() == whole


def stdout_of(folder):
    """A link as /dev/stdout, of the test's own: a wrong program would replace that of the machine."""
    (folder / "stdout").symlink_to("/proc/self/fd/1")
    return folder / "stdout"


def test_mul_to_stdout(multiply):
    """Into a pipe, a socket and amid a file, with nothing of the report in between."""
    arguments, whole, folder = multiply
    command = arguments(stdout_of(folder))
    done = run(*command)
    assert (done.returncode, done.stdout) == (0, whole) and b"shape (3, 8)" in done.stderr
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        assert run(*command, stdout=theirs).returncode == 0
        assert ours.recv(1 << 16) == whole
    with open(folder / "log", "wb", buffering=0) as log:
        log.write(b"before")
        assert run(*command, stdout=log).returncode == 0
        log.write(b"after")
    assert (folder / "log").read_bytes() == b"before" + whole + b"after"
    assert names(folder) == ["a.npy", "b.npy", "log", "stdout"] and (folder / "stdout").is_symlink()


def test_mul_writes_through_a_file_without_a_name(multiply):
    arguments, whole, folder = multiply
    with open(folder / "gone", "w+b") as file:
        (folder / "gone").unlink()
        file.write(bytes(1000))
        file.seek(0)
        assert call(*arguments(f"/dev/fd/{file.fileno()}")) == 0
        assert file.read() == whole
    assert names(folder) == ["a.npy", "b.npy"]


@pytest.mark.parametrize("what", ["array", "report", "facts", "help", "full", "both"])
def test_a_reader_that_has_gone_is_told(multiply, what):
    """Also where Python writes buffered output only as it ends."""
    arguments, _, folder = multiply
    command = {
        "array": arguments(stdout_of(folder)),
        "report": arguments(folder / "c.npy"),
        "help": ["--help"],
    }
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed, open("/dev/full", "wb") as full:
        out, err = full if what == "full" else closed, closed if what == "both" else subprocess.PIPE
        done = run(*command.get(what, ["info"]), stdout=out, stderr=err)
    assert done.returncode == 2
    if what != "both":
        reason = b"No space left on device" if what == "full" else b"Broken pipe"
        assert reason in done.stderr and done.stderr.count(b"\n") == 1, done.stderr


def test_mul_follows_links(multiply):
    arguments, whole, folder = multiply
    (folder / "deep").mkdir()
    (folder / "deep" / "old.npy").write_bytes(b"before")
    (folder / "deep" / "second").symlink_to("../deep/old.npy")
    (folder / "first").symlink_to("deep/second")
    (folder / "deep" / "dangling").symlink_to("new.npy")
    (folder / "side").symlink_to(folder / "deep")
    (folder / "new").symlink_to("side/dangling")
    for link, target in (("first", "old.npy"), ("new", "new.npy")):
        assert call(*arguments(folder / link)) == 0
        assert (folder / "deep" / target).read_bytes() == whole
        assert (folder / link).is_symlink()
    assert names(folder / "deep") == ["dangling", "new.npy", "old.npy", "second"]


@pytest.mark.parametrize("mode", [0o600, 0o666, 0o4751, 0o444])
def test_mul_keeps_mode_and_owner(multiply, monkeypatch, mode):
    arguments, whole, folder = multiply
    out = folder / "c.npy"
    out.touch()
    user = 12345 if os.geteuid() == 0 else os.geteuid()
    os.chown(out, user, user if os.geteuid() == 0 else -1)
    out.chmod(mode)
    before = out.stat()
    monkeypatch.setattr("os.access", lambda path, mode: True)  # as root
    assert call(*arguments(out)) == 0 and out.read_bytes() == whole
    after = out.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_mul_is_private_before_it_is_whole(multiply, monkeypatch):
    """What the mode of the old file hides, nobody can read in the file beside it that is being written."""
    arguments, _, folder = multiply
    (folder / "c.npy").touch(0o600)
    (write, modes) = os.write, []

    def look(file, data):
        modes.append(stat.S_IMODE(os.fstat(file).st_mode))
        return write(file, data)

    monkeypatch.setattr("os.write", look)
    assert call(*arguments(folder / "c.npy")) == 0
    assert set(modes) == {0o600}


def test_a_new_file_has_the_mode_of_the_process(multiply, monkeypatch):
    """Threads share the umask: it is not changed even for a moment."""
    arguments, _, folder = multiply
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("os.umask", lambda mask: pytest.fail("umask is changed"))
            assert call(*arguments(folder / "c.npy")) == 0
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(folder / "c.npy").st_mode) == 0o640


def test_mul_is_on_the_disk_before_it_has_its_name(multiply, monkeypatch):
    arguments, whole, folder = multiply
    (folder / "c.npy").write_bytes(b"before")
    fsync, replace, steps = os.fsync, os.replace, []

    def synced(file):
        steps.append(("fsync", os.fstat(file).st_size))
        fsync(file)

    def replaced(source, target):
        steps.append(("replace", os.stat(source).st_size))
        assert (folder / "c.npy").read_bytes() == b"before"
        assert os.path.basename(source).startswith(".polygpu-")
        replace(source, target)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr("os.replace", replaced)
    assert call(*arguments(folder / "c.npy")) == 0
    assert steps == [("fsync", len(whole)), ("replace", len(whole))]


@pytest.mark.parametrize("step", ["open", "write", "fchmod", "fsync", "replace"])
@pytest.mark.parametrize(
    "error, status", [(OSError(errno.ENOSPC, "No space left on device"), 2), (KeyboardInterrupt(), 130)]
)
def test_a_failing_write_leaves_nothing(multiply, monkeypatch, capsys, step, error, status):
    arguments, _, folder = multiply
    (folder / "c.npy").write_bytes(b"before")
    before, real = names(folder), getattr(os, step)

    def fail(*values, **others):
        if step != "open":
            raise error
        opened = real(*values, **others)
        if ".polygpu-" in str(values[0]):  # the file is made, and the caller has no descriptor of it yet
            os.close(opened)
            raise error
        return opened

    monkeypatch.setattr(f"os.{step}", fail)
    assert call(*arguments(folder / "c.npy")) == status
    assert names(folder) == before and (folder / "c.npy").read_bytes() == b"before"
    text = capsys.readouterr().err
    assert text == "" if status == 130 else ("No space left" in text and "c.npy" in text), text


def test_mul_refuses_an_output_before_it_works(multiply, monkeypatch, capsys):
    arguments, _, folder = multiply
    (folder / "loop").symlink_to("pool")
    (folder / "pool").symlink_to("loop")
    (folder / "sub").mkdir()
    (folder / "way").symlink_to("sub")
    (folder / "lost").symlink_to("absent/c.npy")
    (folder / "kept.npy").write_bytes(b"before")
    locked = {str(folder / "kept.npy"), str(folder / "sub")}
    access = os.access
    monkeypatch.setattr("os.access", lambda path, mode: str(path) not in locked and access(path, mode))
    monkeypatch.setattr("polygpu.cli.np.load", lambda *a, **k: pytest.fail("a file is read"))
    monkeypatch.setattr(pg.Poly, "__mul__", lambda *a: pytest.fail("the product is computed"))
    before = names(folder)
    for out, reason in {
        folder / "sub": "a folder",
        folder / "way": "a folder",
        f"{folder}/new/": "no name",
        "": "no name",
        ".": "a folder",
        folder / "absent" / "c.npy": "no folder",
        folder / "absent" / ".." / "c.npy": "no folder",
        folder / "lost": "no folder",
        folder / "a.npy" / "c.npy": "Not a directory",
        folder / "loop": "Too many levels of symbolic links",
        folder / "kept.npy": "may not be written",
        folder / "sub" / "c.npy": "may not be written",
        folder / ("x" * 300): "File name too long",
    }.items():
        assert call(*arguments(out)) == 2
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1, error
    assert names(folder) == before and (folder / "kept.npy").read_bytes() == b"before"


# ---- what the operands are ----


def npy(shape="(8,)", *, header=None, descr="'<i8'", version=(1, 0), data=bytes(64)):
    """A .npy file whose header is written by hand."""
    if header is None:
        header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"
    text = header if isinstance(header, bytes) else header.encode()
    size = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + size + text + data


HOSTILE = {
    "huge": {"shape": "(4000000000000,)"},
    "huger": {"shape": f"({10**30},)"},
    "beyond doubles": {"shape": f"({10**400},)"},
    "huge, and empty": {"shape": f"(0, {10**30})"},
    "too many digits": {"shape": f"({'9' * 5000},)"},
    "one more than there is": {"shape": "(9,)"},
    "overflowing": {"shape": f"({2**32}, {2**32})"},
    "bool": {"shape": "(True,)"},
    "negative": {"shape": "(-1,)"},
    "negative twice": {"shape": "(-2, -4)"},
    "no tuple": {"shape": "8"},
    "list": {"shape": "[8]"},
    "floats": {"shape": "(8.0,)"},
    "too many axes": {"shape": "(" + "1," * 99 + "8)"},
    "nested": {"shape": "(" * 4000 + "8" + ",)" * 4000},
    "signs": {"shape": "-" * 9000 + "8"},
    "sums": {"shape": "1+" * 4000 + "8"},
    "open string": {"header": "{'descr': '''"},
    "open bracket": {"header": "{'descr': ("},
    "unhashable": {"header": "{[]: 1}"},
    "mixed keys": {"header": "{1: 2, 'descr': 3}"},
    "set": {"header": "{'descr', 'shape'}"},
    "empty header": {"header": ""},
    "null bytes": {"header": b"\0" * 64},
    "bad indent": {"header": "  1\n 2"},
    "bad escape": {"header": "{'\\d': 1}"},
    "not UTF-8": {"header": b"{'descr': '\xff'}"},
    "long": {"header": " " * 60000 + "{}"},
    "objects": {"descr": "'|O'"},
    "objects in fields": {"descr": "[('a', '|O')]"},
    "fields": {"descr": "[('a\\nb', '<i8')]"},
    "no bytes an item": {"descr": "'|V0'", "shape": f"({10**18},)"},
    "huge items": {"descr": "'|V2147483647'"},
    "subarrays": {"descr": "('<i8', (1000000, 1000000))"},
    "bad dtype": {"descr": "'<i8,(('"},
    "no dtype": {"descr": "()"},
    "dates": {"descr": "'<M8[ns]'"},
    "strings": {"descr": "'<U2'"},
    "no data": {"data": b""},
}


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("name", HOSTILE)
def test_mul_survives_hostile_files(multiply, capsys, version, name):
    """An error of one line and no large memory, whatever the header says; no advice to trust it more."""
    arguments, _, folder = multiply
    (folder / "a.npy").write_bytes(npy(**HOSTILE[name], version=version))
    tracemalloc.start()
    try:
        assert call(*arguments(folder / "c.npy")) == 2
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    error = capsys.readouterr().err
    assert str(folder / "a.npy") in error and error.count("\n") == 1 and len(error) < 400, error
    assert not any(word in error for word in ("allow_pickle", "pickle", "max_header_size")), error
    assert names(folder) == ["a.npy", "b.npy"]


@pytest.mark.parametrize(
    "content, reason",
    {
        "another version": (npy(version=(9, 9)), "header"),
        "no header": (b"\x93NUMPY\x01\x00", "header"),
        "half a magic": (b"\x93NU", "header"),
        "header of 4 GiB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", "header"),
        "pickle": (b"\x80\x04K\x01.", "header"),
        "broken archive": (b"PK\x03\x04junk", "archive"),
        "empty archive": (b"PK\x05\x06" + bytes(18), "archive"),
    }.values(),
)
def test_mul_refuses_what_is_no_array(multiply, capsys, content, reason):
    arguments, _, folder = multiply
    (folder / "a.npy").write_bytes(content)
    tracemalloc.start()
    try:
        assert call(*arguments(folder / "c.npy")) == 2
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1 and "pickle" not in error, error


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_mul_reads_every_version(multiply, version):
    """Also headers of Python 2, Fortran's order, other dtypes, and bytes after the array."""
    arguments, whole, folder = multiply
    a = np.load(folder / "a.npy")
    files = {
        npy("(3, 8)", data=a.tobytes(), version=version),
        npy("(3, 8)", data=a.tobytes() + b"more", version=version),
        npy("(3, 8)", descr="'>i2'", data=a.astype(">i2").tobytes(), version=version),
        npy("(3L, 8L)", data=a.tobytes(), version=version),
        npy(
            header="{'descr': '|i1', 'fortran_order': True, 'shape': (3, 8)}",
            data=a.astype(np.int8).T.tobytes(),
            version=version,
        ),
    }
    for content in files:
        (folder / "a.npy").write_bytes(content)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert call(*arguments(folder / "c.npy")) == 0
        assert (folder / "c.npy").read_bytes() == whole and not told
    (folder / "a.npy").write_bytes(npy("(0, 8)", data=b"", version=version))
    assert call(*arguments(folder / "c.npy")) == 0
    assert np.load(folder / "c.npy").shape == (0, 8)


def test_mul_refuses_pipes_and_devices_as_operands(multiply, capsys):
    arguments, _, folder = multiply
    (folder / "a.npy").unlink()
    (folder / "a.npy").symlink_to("/dev/zero")
    assert call(*arguments(folder / "c.npy")) == 2
    assert "not a whole .npy file" in capsys.readouterr().err
    (folder / "a.npy").unlink()
    os.mkfifo(folder / "a.npy")
    done = run(*arguments(folder / "c.npy"))  # nobody ever writes into it
    assert done.returncode == 2 and b"not a whole .npy file" in done.stderr and b"pipe" in done.stderr


def test_mul_refuses_files_beyond_the_memory(multiply, capsys):
    arguments, _, folder = multiply
    (folder / "a.npy").write_bytes(npy(f"({2**40},)"))
    try:
        os.truncate(folder / "a.npy", 2**43 + 4096)  # a file of holes, which takes no room
    except OSError:
        pytest.skip("no files of 8 TiB here")
    assert call(*arguments(folder / "c.npy")) == 2
    error = capsys.readouterr().err
    assert "8.19e+03 GiB" in error and error.count("\n") == 1, error


@pytest.mark.parametrize("text", ["", "Unable to allocate 8 TiB"])
def test_no_memory_is_an_error(multiply, monkeypatch, capsys, text):
    arguments, _, folder = multiply

    def fail(*_):
        raise MemoryError(*[text] * bool(text))

    monkeypatch.setattr(pg.Poly, "__mul__", fail)
    assert call(*arguments(folder / "c.npy")) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"polygpu mul: {text or 'not enough memory'}") and error.count("\n") == 1, error


# ---- files of values ----

RNS = pg.Ring(8, [17, 97])


@pytest.fixture
def saved(tmp_path):
    """A file of values, and what they are."""
    values = {
        "a": RNS.random(3, seed=1),
        "e": pg.Ring(8, 97).random(seed=2).ntt(),
        "w": pg.Ring(4, 2**64 + 13).random((2, 1), seed=3),
        "é\n\x1b[2J": pg.Ring(8, 2**64 - 59).random(seed=4),
    }
    file = tmp_path / "x.safetensors"
    pg.save(file, {**values, "mask": pg.Seeded(RNS, (2, 5), "a secret seed", 7)})
    return file, {**values, "mask": RNS.random((2, 5), "a secret seed", start=7)}


def test_info_of_a_file(saved, capsys):
    file, values = saved
    assert call("info", file, "--json") == 0
    text = capsys.readouterr().out
    facts = json.loads(text)
    assert facts["bytes"] == file.stat().st_size and facts["file"] == str(file)
    by_name = {fact["name"]: fact for fact in facts["values"]}
    assert list(by_name) == [*list(values)[:4], "mask"]
    for name, value in values.items():
        fact, ring = by_name[name], value.ring
        told = facts["rings"][fact["ring"]]
        assert (told["n"], told["kind"], told["root"], told["product"]) == (
            ring.n,
            ring.kind,
            "minimal",
            "auto",
        )
        assert [int(q, 0) for q in told["moduli"]] == [*ring.moduli]
        assert (told["bits"], told["dtype"]) == (ring.modulus.bit_length(), str(ring.dtype))
        assert fact["shape"] == [*value.shape] and fact["domain"] == value.domain
        assert fact.get("bytes", fact.get("expanded bytes")) == value.data.nbytes
    assert len(facts["rings"]) == 4
    assert by_name["mask"]["seed"] == "str of 13 characters" and by_name["mask"]["start"] == 7
    assert call("info", file) == 0
    lines = capsys.readouterr().out
    assert "secret" not in text + lines
    assert f"{file}: {file.stat().st_size} bytes, values 5, rings 4\n" in lines
    assert f"{pg.Ring(8, 97)!r}, Q of 7 bits, uint32\n" in lines
    assert re.search(r"\na +ring 0, shape \(3,\), coef, 192 bytes\n", lines)
    assert "seed <str of 13 characters> from 7, 640 bytes when expanded\n" in lines
    assert "\x1b" not in lines and "'\\xe9\\n\\x1b[2J'" in lines and lines.count("\n") == 1 + 4 + 5


def test_info_reads_no_residues(saved, capsys):
    file, _ = saved
    content = bytearray(file.read_bytes())
    content[-1] ^= 255
    file.write_bytes(content)
    assert call("info", file) == 0


@pytest.mark.parametrize("command", ["info", "convert"])
def test_damaged_files_are_one_line(saved, capsys, command):
    file, _ = saved
    content = file.read_bytes()
    out = [file.with_name("c.npz")] * (command == "convert")
    for damaged in (content[:-1], content[:100], b"", b"\xff" * 100, content[:8] + b"[" * (len(content) - 8)):
        file.write_bytes(damaged)
        assert call(command, file, *out) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"polygpu {command}: {file}: ") and error.count("\n") == 1, error
    for other in (file.with_name("absent.safetensors"), file.parent):
        assert call("info", other) == 2
        error = capsys.readouterr().err
        assert str(other) in error and error.count("\n") == 1, error
    assert names(file.parent) == [file.name]


def test_convert_there_and_back(saved, capsys):
    """Every value through every kind of file, as residues in its domain and as coefficients."""
    file, values = saved
    folder = file.parent
    assert call("convert", file, folder / "all.npz", "--residues") == 0
    assert call("convert", file, folder / "coefficients.npz") == 0
    with np.load(folder / "all.npz") as residues, np.load(folder / "coefficients.npz") as coefficients:
        assert set(residues) == set(coefficients) == set(values)
        for name, value in values.items():
            assert residues[name].tolist() == value.data.tolist()
            found = coefficients[name]
            if value.ring._plan.basis.wide:
                assert found.tolist() == value.data.tolist()
            else:
                assert found.astype(object).tolist() == value.to_bigints().tolist()
                assert found.dtype == (np.uint64 if value.ring.modulus > 2**63 else np.int64)
    for name in ("a", "e", "w"):
        value, residues = values[name], ["--residues"] * (name != "a")
        ring = ["--n", value.ring.n, *(part for q in value.ring.moduli for part in ("--q", q))]
        domain = ["--domain", "eval"] if name == "e" else []
        assert call("convert", file, folder / "one.npy", "--name", name, *residues) == 0
        assert call("convert", folder / "one.npy", folder / "one.npz", *ring, *residues, *domain) == 0
        back = ["convert", folder / "one.npz", folder / "back.safetensors", *ring, *residues, *domain]
        if name == "e":  # of coefficients that were written
            back = ["convert", folder / "one.npy", folder / "back.safetensors", *ring, *residues, *domain]
        assert call(*back) == 0
        found = pg.load(folder / "back.safetensors")["one"]
        assert found == value and found.ring == value.ring and found.domain == value.domain


ROUND_TRIPS = [
    pg.Ring(8, 97),
    pg.Ring(8, 97, root=27),
    pg.Ring(8, 97, root="generator"),
    pg.Ring(8, 97, root=pg.Ring(8, 97).roots[0], product="fft"),
    pg.Ring(8, 97, kind="cyclic"),
    pg.Ring(8, [17, 97]),
    pg.Ring(4, [2**61 - 1, 2**31 - 1]),  # Q of 92 bits, without a transform
    pg.Ring(8, pg.ntt_primes(8, 60, 2)),
    pg.Ring(4, 2**64 - 59),
    pg.Ring(4, 2**64),
    pg.Ring(3, 2**100),
    pg.Ring(4, 2**64 + 13),
]


def assert_same(found, value):
    assert found == value and found.domain == value.domain and found.shape == value.shape
    assert found.ring.__reduce__() == value.ring.__reduce__() and found.data.dtype == value.data.dtype


def variants(ring):
    """Values that are hard to tell from others: single ones, batches as long as there are rows, none."""
    for shape in ((), (ring.rows,), (0,)):
        value = (
            ring.random(shape, seed=3) if shape != (ring.rows,) else ring(np.ones((ring.rows, ring.n), int))
        )
        yield value
        if ring.has_eval:
            yield value.ntt()


@pytest.mark.parametrize("ring", ROUND_TRIPS, ids=repr)
def test_convert_to_npy_and_back_is_the_identity(ring, tmp_path, monkeypatch, capsys):
    """However an array was written and is read: the same value, or an error of one line that says the way."""
    monkeypatch.chdir(tmp_path)
    parameters = ["--n", ring.n, *(x for q in ring.moduli for x in ("--q", q)), "--kind", ring.kind]
    monkeypatch.setattr("os.fsync", lambda file: None)
    for value in variants(ring):
        pg.save("a.safetensors", {"a": value})
        for written in ([], ["--residues"]):
            assert call("convert", "a.safetensors", "a.npy", *written) == 0
            array = np.load("a.npy")
            assert array.dtype.kind in "iu" and array.shape[-1] == ring.n
            for given in ([], ["--residues"]):
                capsys.readouterr()
                status = call("convert", "a.npy", "b.safetensors", *parameters, *given)
                error = capsys.readouterr().err
                if status:
                    assert given != written and error.count("\n") == 1, error
                    assert ". Add --residues" in error or "ring(x) takes integers" in error, error
                else:
                    assert_same(pg.load("b.safetensors")["a"], value)


def test_convert_to_npz_and_back_is_the_identity(tmp_path, monkeypatch, capsys):
    """Values of several rings and domains under odd names, without a word about their rings."""
    monkeypatch.chdir(tmp_path)
    odd = ["a.npy", "a", "b/c", "/d", "..", "file", "é", "x" * 999, "", "\\", "arr_0", "a b"]
    all_values = [value for ring in ROUND_TRIPS for value in variants(ring)]
    values = dict(zip([*odd, *map(str, range(99))], all_values, strict=False))
    pg.save("a.safetensors", values)
    for written in ([], ["--residues"]):
        assert call("convert", "a.safetensors", "a.npz", *written) == 0
        with zipfile.ZipFile("a.npz") as archive:
            assert archive.testzip() is None
        with np.load("a.npz") as arrays:
            assert len(arrays) == len(values) > len(odd)
        for given in ([], ["--residues"]):
            assert call("convert", "a.npz", "b.npz", *given) == 0
            assert call("convert", "b.npz", "b.safetensors", *given) == 0
            found = pg.load("b.safetensors")
            assert list(found) == list(values)
            for name, value in values.items():
                assert_same(found[name], value)
            capsys.readouterr()
            assert call("convert", "a.npz", "c.safetensors", "--n", 8, "--q", 97, *given) == 2
            assert "Leave them out" in capsys.readouterr().err
    assert call("convert", "a.npz", "c.npy", "--name", "a", "--n", 8, "--q", 97) == 0
    assert call("convert", "a.npz", "c.npy", "--name", "a", "--domain", "coef") == 2
    assert "in 'eval'. Leave the option out" in capsys.readouterr().err
    assert not os.path.exists("c.safetensors")


def test_mul_reads_what_convert_wrote(tmp_path, monkeypatch, capsys):
    """Also evaluated values, other roots, and beyond words, with the options of the ring alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda file: None)
    for ring in ROUND_TRIPS[1::2]:
        a = ring.random(2, seed=1)
        b = ring.random(seed=2).ntt() if ring.has_eval else ring.random(seed=2)
        pg.save("x.safetensors", {"a": a, "b": b})
        parameters = ["--n", ring.n, *(x for q in ring.moduli for x in ("--q", q)), "--kind", ring.kind]
        for written in ([], ["--residues"]):
            for name in "ab":
                assert call("convert", "x.safetensors", f"{name}.npy", "--name", name, *written) == 0
            assert call("mul", "a.npy", "b.npy", "-o", "c.npy", *parameters, *written) == 0
            assert call("convert", "c.npy", "c.safetensors", *parameters, *written) == 0
            found = pg.load("c.safetensors")["c"]
            product = a * b
            assert found.ring == ring and found == product and found.domain == product.domain
    pg.save("x.safetensors", {"a": pg.Ring(8, 97).ones().ntt()})
    assert call("convert", "x.safetensors", "a.npy") == 0
    capsys.readouterr()
    assert call("mul", "a.npy", "a.npy", "-o", "c.npy", "--n", 8, "--q", 17) == 2
    assert "a.npy: its values are of Ring(8, 97)" in capsys.readouterr().err
    pg.save("x.safetensors", {"b": pg.Ring(8, 97, root=27).ones().ntt()})
    assert call("convert", "x.safetensors", "b.npy") == 0
    for operands in (["a.npy", "b.npy"], ["b.npy", "a.npy"]):
        assert call("mul", *operands, "-o", "d.npy", "--n", 8, "--q", 97) == 2
        assert "root" in capsys.readouterr().err and not os.path.exists("d.npy")


def test_convert_says_that_it_reduced(files, capsys):
    a, _, folder = files
    for q, more in ((97, ", reduced to [0, Q)"), (201, ", reduced to [0, Q)")):
        assert call("convert", folder / "a.npy", folder / "c.npz", "--n", 8, "--q", q) == 0
        assert f"a: int64 coefficients, shape (3, 8){more}\n" in capsys.readouterr().out
    np.save(folder / "a.npy", np.abs(a))
    assert call("convert", folder / "a.npy", folder / "c.npz", "--n", 8, "--q", 101, "--json") == 0
    assert json.loads(capsys.readouterr().out)["values"][0]["reduced"] is False


def test_a_ring_that_is_too_long_for_a_note(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pg.save("x.safetensors", {"a": pg.Ring(1, 2**300000)([1])})
    for target in ("c.npz", "c.npy"):
        assert call("convert", "x.safetensors", target) == 2
        error = capsys.readouterr().err
        assert (
            re.search(r"takes 75\d{3} bytes to describe", error)
            and "Write a .safetensors" in error
            and error.count("\n") == 1
        )
    assert names(tmp_path) == ["x.safetensors"]


def test_damaged_notes_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pg.save("x.safetensors", {"a": pg.Ring(8, 97).ones().ntt()})
    assert call("convert", "x.safetensors", "a.npy", "--residues") == 0
    with open("a.npy", "rb") as file:
        whole = file.read()
    at = whole.index(b'{"polygpu":')
    note = json.loads(whole[at:])["polygpu"]
    deep = b'{"polygpu":' + b"[" * 60000
    for text, reason in {
        whole[at:-1]: "its note must be JSON",
        b'{"polygpu":': "its note must be JSON",
        b'{"polygpu":1}': "its note: must have",
        deep: "its note must be JSON",
        b'{"polygpu":' + b" " * 70000 + b"1}": "longer than 65535",
        json.dumps({"polygpu": {**note, "more": 1}}, separators=(",", ":")).encode(): "nothing else",
        **{
            json.dumps({"polygpu": {**note, **{key: value}}}, separators=(",", ":")).encode(): reason
            for key, value, reason in (
                ("format", 2, "newer polygpu"),
                ("format", "1", "must be 1"),
                ("domain", "ntt", "'coef' or 'eval'"),
                ("domain", ["eval"], "'coef' or 'eval'"),
                ("holds", None, "evaluated residues"),
                ("holds", ["residues"], "evaluated residues"),
                ("domain", "coef", ""),
                ("ring", {}, "must have"),
                ("ring", {**note["ring"], "moduli": ["98"]}, ""),
                ("ring", {**note["ring"], "moduli": [hex(2**44497 - 1)]}, "primality"),
                ("ring", {**note["ring"], "n": "8"}, "must be a number"),
            )
        },
    }.items():
        with open("a.npy", "wb") as file:
            file.write(whole[:at] + text)
        for command in (["convert", "a.npy", "c.npz"], ["mul", "a.npy", "a.npy", "-o", "c.npy", "--n", 8]):
            assert call(*command, "--q", 97) == 2
            error = capsys.readouterr().err
            assert "a.npy: " in error and reason in error and error.count("\n") == 1 and len(error) < 500, (
                error
            )
    assert names(tmp_path) == ["a.npy", "x.safetensors"]


def test_convert_says_what_it_wrote(saved, capsys):
    file, values = saved
    out = file.with_name("c.npz")
    assert call("convert", file, out, "--json", "--residues") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["output"] == str(out) and [fact["name"] for fact in facts["values"]] == list(values)
    assert facts["values"][1]["holds"] == "residues (*batch, rows, n), evaluated"
    assert facts["values"][0]["shape"] == [3, 2, 8] and facts["values"][0]["dtype"] == "uint32"
    assert call("convert", file, out, "--name", "e") == 0
    assert "e: int64 coefficients, shape (8,)\n" in capsys.readouterr().out
    assert call("convert", file, file.with_name("d.safetensors"), "--name", "mask") == 0
    assert "mask: uint32 residues, coef, shape (2, 5, 2, 8)\n" in capsys.readouterr().out
    assert pg.load(file.with_name("d.safetensors")) == {"mask": values["mask"]}


def test_convert_of_integers(files, capsys):
    a, b, folder = files
    out = folder / "c.safetensors"
    ring = ["--n", 8, "--q", 97, "--kind", "cyclic"]
    assert call("convert", folder / "a.npy", out, *ring, "--name", "x") == 0
    assert pg.load(out) == {"x": pg.Ring(8, 97, kind="cyclic")(a)}
    with zipfile.ZipFile(folder / "in.npz", "w") as archive:
        for name, array in {"a": a, "file": b}.items():  # numpy.savez has a parameter of that name
            with archive.open(f"{name}.npy", "w") as part:
                np.lib.format.write_array(part, array)
    assert call("convert", folder / "in.npz", out, *ring) == 0
    expected = {"a": pg.Ring(8, 97, kind="cyclic")(a), "file": pg.Ring(8, 97, kind="cyclic")(b)}
    assert pg.load(out) == expected
    assert call("convert", out, folder / "again.npz") == 0
    with np.load(folder / "again.npz") as arrays:
        assert arrays["file"].tolist() == (b % 97).tolist()
    assert call("convert", folder / "in.npz", folder / "c.npy", *ring, "--name", "file") == 0
    assert np.load(folder / "c.npy").tolist() == (b % 97).tolist()


def test_convert_through_a_pipe(saved, capsys):
    file, values = saved
    os.mkfifo(file.with_name("pipe.npy"))
    os.mkfifo(file.with_name("pipe.npz"))
    os.mkfifo(file.with_name("pipe.safetensors"))
    whole = io.BytesIO()
    np.save(whole, values["a"].data)
    for name in ("pipe.npy", "pipe.npz"):
        reader = os.open(file.with_name(name), os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert call("convert", file, file.with_name(name), "--name", "a", "--residues") == 0
            written = everything(reader)
        finally:
            os.close(reader)
        captured = capsys.readouterr()
        assert captured.out == "" and "a: uint32" in captured.err
        if name == "pipe.npy":
            assert written == whole.getvalue()
        else:
            assert np.load(io.BytesIO(written))["a"].tolist() == values["a"].data.tolist()
    assert call("convert", file, file.with_name("pipe.safetensors")) == 2
    assert "pipe or device" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, reason",
    {
        "no ending": (["x.safetensors", "c"], ".npy, .npz, .safetensors"),
        "another ending": (["a.txt", "c.npy"], ".npy, .npz, .safetensors"),
        "several values": (["x.safetensors", "c.npy"], "--name chooses it"),
        "no such value": (["x.safetensors", "c.npy", "--name", "b"], "'b' is not in"),
        "no such array": (["in.npz", "c.npy", "--n", 8, "--q", 17, "--name", "b"], "--name: b is not in"),
        "a ring for one that has one": (["x.safetensors", "c.npz", "--n", 8, "--q", 17], "--n, --q"),
        "a kind": (["x.safetensors", "c.npz", "--kind", "cyclic"], "--kind"),
        "a domain": (["x.safetensors", "c.npz", "--domain", "eval"], "--domain"),
        "no ring": (["a.npy", "c.npz"], "names no ring"),
        "no modulus": (["in.npz", "c.npz", "--n", 8], "names no ring"),
        "evaluated integers": (["a.npy", "c.npz", "--n", 8, "--q", 17, "--domain", "eval"], "--residues"),
        "no transform": (
            ["r.npy", "c.npz", "--n", 8, "--q", 18, "--domain", "eval", "--residues"],
            "not prime",
        ),
        "no residues": (["r.npy", "c.npz", "--n", 8, "--q", 7, "--residues"], "is not a residue"),
        "too long": (["a.npy", "c.npz", "--n", 4, "--q", 7], "8 coefficients"),
        "an archive as array": (["in.npy", "c.npz", "--n", 8, "--q", 7], "archive"),
        "an array as archive": (["a.npz", "c.npy", "--n", 8, "--q", 7], "not a whole .npz"),
        "absent": (["no.npz", "c.npy", "--n", 8, "--q", 7], "no such file"),
        "no folder": (["a.npy", "no/c.npz", "--n", 8, "--q", 7], "no folder"),
        "a folder": (["a.npy", "sub.npz", "--n", 8, "--q", 7], "a folder"),
    }.values(),
)
def test_convert_refuses(saved, files, capsys, arguments, reason):
    file, _ = saved
    a, _, folder = files
    assert file.parent == folder
    np.savez(folder / "in.npz", a=a)
    np.savez(folder / "in", a=a)
    (folder / "in.npy").write_bytes((folder / "in.npz").read_bytes())
    (folder / "a.npz").write_bytes((folder / "a.npy").read_bytes())
    np.save(folder / "r.npy", np.full((1, 8), 11, np.uint32))
    (folder / "sub.npz").mkdir()
    before = names(folder)
    source, target, *others = arguments
    assert call("convert", folder / source, folder / target, *others) == 2
    error = capsys.readouterr().err
    assert reason in error and error.startswith("polygpu convert: ") and error.count("\n") == 1, error
    assert names(folder) == before


def test_convert_leaves_nothing_where_it_fails(saved, capsys, monkeypatch):
    file, _ = saved
    out = file.with_name("c.npz")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for target in (out, file.with_name("c.safetensors")):
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", fail)
            assert call("convert", file, target) == 2
        assert f"{target}: not written (No space left on device)" in capsys.readouterr().err
        assert names(file.parent) == [file.name]
    name = "n" * (1 << 15)  # more than a zip archive takes
    pg.save(file, {name: RNS([1])})
    assert call("convert", file, out) == 2
    assert "no archive takes the name nnnn" in capsys.readouterr().err and names(file.parent) == [file.name]
    pg.save(file, {"a\0b": RNS([1]), "a": RNS([2])})
    assert call("convert", file, out) == 2
    assert "no archive takes the name 'a\\x00b'" in capsys.readouterr().err


@pytest.mark.parametrize("name", HOSTILE)
def test_convert_survives_hostile_archives(tmp_path, capsys, name):
    archive = tmp_path / "in.npz"
    with zipfile.ZipFile(archive, "w") as whole:
        whole.writestr("a.npy", npy(**HOSTILE[name]))
    tracemalloc.start()
    try:
        assert call("convert", archive, tmp_path / "c.npy", "--n", 8, "--q", 17) == 2
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    error = capsys.readouterr().err
    assert str(archive) in error and error.count("\n") == 1 and len(error) < 400, error
    assert names(tmp_path) == ["in.npz"]


def test_convert_refuses_archives_that_are_none(tmp_path, capsys):
    def archive(*members, shape="(8,)", **options):
        content = io.BytesIO()
        with warnings.catch_warnings(), zipfile.ZipFile(content, "w", **options) as whole:
            warnings.simplefilter("ignore")
            for name in members:
                whole.writestr(name, npy(shape))
        return content.getvalue()

    good = archive("a.npy")
    lying = bytearray(archive("a.npy", shape="(9999999,)"))
    at = lying.index(b"PK\1\2")
    lying[at + 20 : at + 28] = b"\xff\xff\xff\x7f" * 2  # its sizes
    encrypted = bytearray(good)
    encrypted[good.index(b"PK\1\2") + 8] |= 1
    crc = bytearray(good)
    crc[good.index(b"PK\1\2") + 16] ^= 1
    for content, reason in {
        b"": "no archive",
        b"PK\3\4": "no archive",
        good[:-1]: "no archive",
        good[: len(good) // 2]: "no archive",
        archive("a.npy", "a.npy"): "twice",
        archive("a", "a.npy"): "twice",
        archive("a.npy", compression=zipfile.ZIP_DEFLATED): "compressed",
        bytes(lying): "no archive",
        bytes(encrypted): "no archive",
        bytes(crc): "no archive",
    }.items():
        (tmp_path / "in.npz").write_bytes(content)
        assert call("convert", tmp_path / "in.npz", tmp_path / "c.npy", "--n", 8, "--q", 17) == 2
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1, (reason, error)
    (tmp_path / "in.npz").write_bytes(good)
    assert call("convert", tmp_path / "in.npz", tmp_path / "c.npy", "--n", 8, "--q", 17) == 0
    assert np.load(tmp_path / "c.npy").tolist() == [0] * 8


# ---- interrupts ----

STUB = """
import signal, time
print(signal.getsignal(signal.SIGINT), flush=True)
time.sleep(60)
"""


def path_before(folder):
    """PYTHONPATH with a folder before what it names here."""
    return ":".join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


@contextmanager
def started(folder, module, command, *arguments, interrupts=signal.default_int_handler):
    """A process that stands still while it imports a module, and what it says of its handler there."""
    (folder / f"{module}.py").write_text(STUB)
    before = signal.signal(signal.SIGINT, interrupts)  # a job in the background would hand down SIG_IGN
    try:
        process = subprocess.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(PYTHONPATH=path_before(folder)),
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert select.select([process.stdout], [], [], 60)[0], "nothing is imported"
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_an_interrupted_command_ends_in_silence(tmp_path, command):
    with started(tmp_path, "cupy", command, "info") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "") and process.returncode == 130


def test_a_second_interrupt_ends_what_waits_for_a_reader(tmp_path):
    """The first one ends the work; then the output is written, into a pipe that nobody empties."""
    (tmp_path / "cupy.py").write_text("import os; os.write(2, b'ready'); raise ImportError")
    reader, writer = os.pipe()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(reader, "rb"), open(writer, "wb", buffering=0) as full:
        os.set_blocking(writer, False)
        while full.write(bytes(1 << 16)):
            pass
        os.set_blocking(writer, True)
        process = subprocess.Popen(
            ["polygpu", "info"],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment(PYTHONPATH=path_before(tmp_path)),
        )
        signal.signal(signal.SIGINT, before)
        with process:
            try:
                assert process.stderr.read(5) == b"ready"
                for _ in range(20):
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(0.3)
                        break
                    process.send_signal(signal.SIGINT)
                assert process.returncode in (130, -signal.SIGINT) and process.stderr.read() == b""
            finally:
                process.kill()


@pytest.mark.parametrize("module", ["numpy", "cupy"])
def test_ignored_interrupts_stay_ignored(tmp_path, module):
    """As in a job that a shell started in the background."""
    with started(tmp_path, module, COMMANDS["script"], "info", interrupts=signal.SIG_IGN) as (_, handler):
        assert handler == str(signal.SIG_IGN)


USER = "import sys; sys.argv.pop(); import polygpu.cli; sys.exit(polygpu.cli.main(['info']))"


@pytest.mark.parametrize(
    "module, command",
    [
        ("numpy", ["-m", "polygpu", "info"]),
        ("argparse", ["-m", "polygpu", "info"]),
        ("numpy", ["polygpu"]),
        ("cupy", ["polygpu"]),
        ("numpy", ["-c", "import polygpu", "polygpu"]),
        ("numpy", ["-c", "import polygpu.cli  # https://example.org/polygpu"]),
        ("numpy", ["-m", "user", "polygpu"]),
        ("cupy", ["-c", USER, "-m", "polygpu"]),
        ("cupy", ["-m", "user", "polygpu"]),
        ("cupy", ["user.py", "-m", "polygpu"]),
    ],
)
def test_a_library_leaves_handlers_alone(tmp_path, monkeypatch, module, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "polygpu").write_text(USER.replace("sys.argv.pop(); ", ""))
    with started(tmp_path, module, [sys.executable, *command]) as (process, handler):
        assert "default_int_handler" in handler
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (130, -signal.SIGINT)


def test_main_leaves_the_handlers_of_a_program_alone(capsys):
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler in (signal.SIG_DFL, signal.SIG_IGN, lambda *_: None):
            signal.signal(signal.SIGINT, handler)
            assert call("info") == 0
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
