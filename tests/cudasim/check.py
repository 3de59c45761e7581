"""Runs Python code with kernels built for a sanitizer: races (thread) or bad addresses (address).

    python -m cudasim.check thread script.py
    python -m cudasim.check address -m pytest tests/test_cuda.py

A sanitizer must be in the process from its start, so the code runs in a process of its own. Exit status 0
means that the code succeeded and no report was made; reports are printed.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from . import compiler

_LIBRARIES = {"thread": "libtsan.so", "address": "libasan.so"}
_OPTIONS = {
    "thread": {"TSAN_OPTIONS": "exitcode=0:history_size=2:log_path={log}:suppressions={folder}/tsan.supp"},
    "address": {
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=0:log_path={log}",
        "UBSAN_OPTIONS": "print_stacktrace=1",  # it writes to stderr, whatever log_path says
    },
}
_REPORT = re.compile(r"^(?:WARNING: ThreadSanitizer: |==\d+==ERROR: AddressSanitizer: )", re.MULTILINE)
_MISALIGNED = re.compile(r"^.*: runtime error: .*(?:\n(?!.*runtime error: ).*)*?\n\n", re.MULTILINE)
# Frames in a library that was loaded after the first report: the sanitizer does not look them up.
_UNKNOWN_FRAME = re.compile(r"(#\d+ )(?:<null> <null>|0x[0-9a-f]+ ) \((\S+\.so)\+(0x[0-9a-f]+)\)")
_Key = TypeVar("_Key")
_FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Result:
    """What came of a checked run; `reports` are the sanitizer's, one text each."""

    returncode: int
    output: str
    reports: list[str]

    @property
    def clean(self) -> bool:
        return self.returncode == 0 and not self.reports


@functools.cache
def missing(sanitizer: str) -> str | None:
    """Why this machine cannot run that check, or None if it can."""
    try:
        library = _library(sanitizer)
    except compiler.CompileError as error:
        return str(error)
    if library is None:
        return f"g++ comes without {_LIBRARIES[sanitizer]}"
    trial = _start(sanitizer, ["-c", "print('started')"], "/dev/null", None, None)
    if trial.stdout.strip() != "started":
        return f"Python does not start with {library} preloaded: {trial.stdout[-500:]}"
    return None


def _library(sanitizer: str) -> str | None:
    """Where the sanitizer's runtime is. None without one: the compiler then gives the bare name back."""
    path = compiler.find_library(_LIBRARIES[sanitizer])
    return path if os.path.isabs(path) else None


def _start(
    sanitizer: str,
    arguments: Sequence[str],
    log: str,
    environment: Mapping[str, str] | None,
    timeout: float | None,
) -> subprocess.CompletedProcess[str]:
    variables = {
        **os.environ,
        **(environment or {}),
        "CUDASIM_SANITIZER": sanitizer,
        "LD_PRELOAD": _library(sanitizer) or "",
        "OPENBLAS_NUM_THREADS": "1",
        **{name: value.format(log=log, folder=_FOLDER) for name, value in _OPTIONS[sanitizer].items()},
    }
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(_FOLDER.parent), variables.get("PYTHONPATH")])
    )
    command = [sys.executable, *arguments]
    # Old ThreadSanitizers fail where Linux randomises the address space as much as it does now.
    if setarch := shutil.which("setarch"):
        command = [setarch, "-R", *command]
    return subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout
    )


def run(
    sanitizer: str,
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = 600,
) -> Result:
    """Run `python *arguments` with kernels built for the sanitizer."""
    if sanitizer not in _LIBRARIES:
        raise ValueError(f"sanitizer is {sanitizer!r}, must be one of {', '.join(_LIBRARIES)}")
    with tempfile.TemporaryDirectory(prefix="cudasim-check-") as folder:
        done = _start(sanitizer, arguments, os.path.join(folder, "log"), environment, timeout)
        reports = [
            report
            for log in sorted(Path(folder).iterdir())
            for report in _split(log.read_text(errors="replace"))
        ]
    reports += [match[0].strip() for match in _MISALIGNED.finditer(done.stdout)]
    return Result(done.returncode, done.stdout, reports)


def run_code(sanitizer: str, code: str, **keywords: object) -> Result:
    """Run a piece of Python under the sanitizer."""
    return run(sanitizer, ["-c", code], **keywords)  # type: ignore[arg-type]


def run_together(runs: Mapping[_Key, tuple[str, str]], **keywords: object) -> dict[_Key, Future[Result]]:
    """Run pieces of Python, each a sanitizer and its code; as many at once as there are processors."""
    workers = ThreadPoolExecutor(os.cpu_count())
    started = {key: workers.submit(run_code, *run, **keywords) for key, run in runs.items()}
    workers.shutdown(wait=False)
    return started


def _name_frame(frame: re.Match[str]) -> str:
    library = (
        compiler.cache_folder() / frame[2]
    )  # ThreadSanitizer names the file alone, AddressSanitizer the whole path
    command = ["addr2line", "-e", str(library), "-f", "-C", "-p", frame[3]]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return frame[0]
    return f"{frame[1]}{found.replace(' at ', ' ', 1)} ({library.name}+{frame[3]})"


def _split(log: str) -> list[str]:
    log = _UNKNOWN_FRAME.sub(_name_frame, log)
    starts = [match.start() for match in _REPORT.finditer(log)]
    ends = [*starts[1:], len(log)]
    last = re.compile(r"\n=====|\nShadow bytes around")  # what follows does not help
    return [last.split(log[a:b])[0].rstrip() for a, b in zip(starts, ends, strict=True)]


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2 or arguments[0] not in _LIBRARIES:
        print(__doc__)
        return 2
    if reason := missing(arguments[0]):
        print(f"cannot check: {reason}")
        return 3
    result = run(arguments[0], arguments[1:], timeout=None)
    print(result.output, end="")
    for report in result.reports:
        print(f"\n---- {arguments[0]} sanitizer ----\n{report}")
    print(f"{len(result.reports)} reports, exit status {result.returncode}")
    return 0 if result.clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
