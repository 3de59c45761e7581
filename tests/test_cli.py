"""The command line: outputs, exit status, files, bad input."""

import io
import json
import os
import re
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from devices import ABSENT, needs_card

import polygpu as pg
from polygpu.cli import EXTRAS, main


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
    assert len(text.splitlines()) == 10
    assert call("info", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["polygpu"] == pg.__version__ and facts["gpu"].startswith("none: ") == (ABSENT is not None)
    assert facts["cpu"]["threads"] >= 1 and "processor quota" in facts["cpu"]
    missing = {name for name, modules in EXTRAS.items() if not all(map(find_spec, modules))}
    assert set(facts["missing extras"]) == missing
    for extra, command in facts["missing extras"].items():
        assert command == f'pip install "polygpu[{extra}]"' and f"{extra} ({command})" in text


def test_info_knows_every_extra():
    """The extras are those of pyproject.toml, without those for tests and for CuPy, which `gpu` names."""
    text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text()
    section = text.split("[project.optional-dependencies]\n")[1].split("\n[")[0]
    assert {*EXTRAS, "cuda12", "cuda13", "test"} == set(re.findall(r"^(\w+) = \[", section, re.M))


def test_demo(capsys):
    assert call("demo", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] and len(facts["rows"]) >= 5 and all(row["ok"] for row in facts["rows"])
    notes = {row["name"].split()[0]: row["note"] for row in facts["rows"]}
    assert notes["ML-KEM-768"] == ""
    assert all(re.search(r"\d", notes[scheme]) for scheme in ("BFV", "SimplePIR", "CKKS", "TFHE"))
    assert call("demo") == 0
    shown = capsys.readouterr().out
    assert "ML-KEM-768" in shown and "bits of noise budget left" in shown and "by theory" in shown


def test_demo_detects_wrong_results(capsys, monkeypatch):
    monkeypatch.setattr("polygpu.examples.ml_kem.decaps", lambda p, dk, c: [bytes(32)] * len(c))
    assert call("demo") == 1
    captured = capsys.readouterr()
    assert "WRONG" in captured.out and "demo" in captured.err


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


def test_selftest_on_the_reference_device(capsys):
    assert call("selftest", "--device", "reference") == 0
    assert " 0 failed" in capsys.readouterr().out


def test_selftest_detects_a_wrong_product(capsys, monkeypatch):
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


def test_invalid_arguments_exit_with_status_2():
    for arguments in ([], ["nothing"], ["demo", "more"], ["bench", "--out"]):
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        assert exit.value.code == 2


def test_library_works_with_a_read_only_home():
    """No cache can be written, but everything works and nothing is printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("POLYGPU", "XDG"))}
    done = subprocess.run(
        [sys.executable, "-c", "import polygpu as pg; print(pg.Ring(4, 17)([0, 1]).ntt().data.tolist())"],
        capture_output=True,
        text=True,
        env={**environment, "HOME": "/proc/nowhere"},
    )
    assert done.stdout.strip() == "[[2, 15, 8, 9]]" and done.stderr == ""


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


def test_command_output_to_ascii_streams(tmp_path, monkeypatch):
    """Help, reports and errors contain names and values that ASCII cannot encode."""
    from test_bench import row

    from polygpu._bench import bench

    monkeypatch.chdir(tmp_path)
    name = "Größe \udcff"
    pg.save(name + ".safetensors", {"é": pg.Ring(8, 17)([1])})
    measured = row(op="product", machine={**row().machine, "name": name})
    monkeypatch.setattr(bench, "measure_here", lambda devices, told: [measured])
    monkeypatch.setattr(bench, "answering", lambda: ["cpu"])
    for status, *command in (
        *((0, command, "--help") for command in ("info", "demo", "selftest", "bench")),
        (0, "--help"),
        (0, "info"),
        (0, "info", name + ".safetensors"),
        (2, "info", "ü"),
        (0, "bench", "--out", "ü"),
        (2, "bench", "--out", "ü/ü"),
    ):
        for more in ([], ["--json"]) if command[-1] != "--help" else ([],):
            with ascii_streams(monkeypatch) as written:
                try:
                    found = main([*command, *more])
                except SystemExit as exit:
                    found = exit.code
                assert found == status and written(), command
                assert "Traceback" not in written()


def test_commands_in_the_c_locale(tmp_path):
    """Python chooses ASCII in the C locale if its UTF-8 mode is disabled."""
    changes = {"LC_ALL": "C", "PYTHONUTF8": 0, "PYTHONCOERCECLOCALE": 0}
    for more in ({**changes}, {"PYTHONIOENCODING": "ascii"}):
        command = ["polygpu", "info", str(tmp_path / "é.safetensors")]
        done = subprocess.run(command, capture_output=True, env=environment(**more), timeout=60)
        assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"No such file" in done.stderr


@pytest.mark.parametrize("what", ["facts", "help", "full", "both"])
def test_commands_writing_to_a_closed_pipe(what):
    """Python may write buffered output only when it exits."""
    command = {"help": ["--help"]}
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as closed, open("/dev/full", "wb") as full:
        out, err = full if what == "full" else closed, closed if what == "both" else subprocess.PIPE
        done = run(*command.get(what, ["info"]), stdout=out, stderr=err)
    assert done.returncode == 2
    if what != "both":
        reason = b"No space left on device" if what == "full" else b"Broken pipe"
        assert reason in done.stderr and done.stderr.count(b"\n") == 1, done.stderr


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
    pg.save(file, {**values, "mask": pg.Seeded(RNS, (2, 5), seed="a secret seed", start=7)})
    return file, {**values, "mask": RNS.random((2, 5), seed="a secret seed", start=7)}


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


def test_info_of_damaged_files_prints_one_line(saved, capsys):
    file, _ = saved
    content = file.read_bytes()
    for damaged in (content[:-1], content[:100], b"", b"\xff" * 100, content[:8] + b"[" * (len(content) - 8)):
        file.write_bytes(damaged)
        assert call("info", file) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"polygpu info: {file}: ") and error.count("\n") == 1, error
    for other in (file.with_name("absent.safetensors"), file.parent):
        assert call("info", other) == 2
        error = capsys.readouterr().err
        assert str(other) in error and error.count("\n") == 1, error


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
def test_interrupted_command_prints_nothing(tmp_path, command):
    with started(tmp_path, "cupy", command, "info") as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "") and process.returncode == 130


@pytest.mark.parametrize(
    "module, command",
    [
        ("numpy", ["-m", "polygpu", "info"]),
        ("numpy", ["-c", "import polygpu"]),
        ("cupy", ["-c", "import sys, polygpu.cli as cli; sys.exit(cli.main(['info']))"]),
    ],
)
def test_import_leaves_signal_handlers_alone(tmp_path, module, command):
    with started(tmp_path, module, [sys.executable, *command]) as (process, handler):
        assert "default_int_handler" in handler
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (130, -signal.SIGINT)


def test_main_leaves_signal_handlers_alone(capsys):
    before = signal.getsignal(signal.SIGINT)
    try:
        for handler in (signal.SIG_DFL, signal.SIG_IGN, lambda *_: None):
            signal.signal(signal.SIGINT, handler)
            assert call("info") == 0
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
