"""The command line: outputs, exit status, files, bad input."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import polygpu as pg
from polygpu.cli import main
from polygpu.testing import multiply_integers


@pytest.fixture
def files(tmp_path):
    """Two batches of signed integers and the place of the result."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(-100, 100, (3, 8)), rng.integers(-100, 100, 8)
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    return a, b, tmp_path


def call(*arguments):
    return main([str(a) for a in arguments])


def test_info(capsys):
    assert call("info") == 0
    text = capsys.readouterr().out
    assert "avx" in text or "portable" in text
    assert call("info", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["polygpu"] == pg.__version__ and facts["gpu"].startswith("none: ")
    assert facts["cpu"]["threads"] >= 1


def test_demo(capsys):
    assert call("demo", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] and len(facts["rows"]) >= 5 and all(row["ok"] for row in facts["rows"])
    assert call("demo") == 0
    assert "ML-KEM-768" in capsys.readouterr().out


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
    assert call("selftest", "--device", "cuda") == 2
    assert "pip install" in capsys.readouterr().err


def test_selftest_of_the_definitions(capsys):
    assert call("selftest", "--device", "reference") == 0
    assert " 0 failed" in capsys.readouterr().out


def test_selftest_sees_a_wrong_product(capsys, monkeypatch):
    monkeypatch.setattr("polygpu.backends.cpu.CpuBackend.multiply", lambda self, plan, a, b, out: out.fill(0))
    assert call("selftest") == 1
    assert "product in Ring" in capsys.readouterr().out


def test_module_and_script_run(tmp_path):
    for command in ([sys.executable, "-m", "polygpu"], ["polygpu"]):
        done = subprocess.run(
            [*command, "info"],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"},
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
