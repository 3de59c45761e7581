"""Progress of long work: what is under way, how much of it is done, and for how long it runs.

An operation that may take longer than about 10 ms is a Work. Outside `with progress()` a Work reads one
context variable and is silent. Shorter operations are not a Work and read nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import Thread, get_ident
from time import perf_counter, sleep
from typing import Any, NamedTuple

from ..errors import ParameterError
from .checks import unusual
from .locks import new_lock

LONG = 1 << 22  # residues; a product or transform of this many on the host is a Work: about 10 ms on a core

_PIECE = 0.25  # seconds of work between two reports
_SHOWN = 0.5  # seconds after which work is drawn
_TICK = 0.1  # seconds between two drawings
_LINE = 1.0  # seconds after which work gets a plain line, and between two lines


class Progress(NamedTuple):
    """What a callback is told: when some work begins, after its steps, and when it ends."""

    what: str  # "tables of 2^24 points modulo 3 primes"
    done: int
    total: int
    seconds: float  # since it began
    ended: bool  # the last report of this work; done < total where it was interrupted or failed


Report = Callable[[Progress], Any]

_report: ContextVar[Report | None] = ContextVar("polygpu_progress", default=None)


@contextmanager
def progress(callback: Report | None = None) -> Iterator[None]:
    """Show long work inside a `with`: what it is, how much of it is done, and for how long it runs.

    Where stderr is a terminal and `rich` is installed, work of more than half a second is drawn there as
    bars. Otherwise work of more than a second gets plain lines on stderr: at most one a second, and one at
    its end. Results are the same. Each thread has its own setting.

    It covers tables and roots of large rings; kernels that are compiled for a GPU; on the CPU products,
    transforms and random values of large batches, blind rotations, inverses and large linalg.matmul;
    to_bigints() and ring(x) of many Python ints; and ntt_primes.

    Args:
        callback: a function of one argument, which is called instead. The argument has five fields: `what`, a
            text; `done` and `total`, in steps of the work; `seconds` since it began; and `ended`, true in the
            last call for this work. Calls come from the thread that works, also for work of only some ten
            milliseconds, and for work inside other work. What the callback raises ends the work, as Ctrl-C
            does.

    Raises:
        ParameterError: the callback cannot be called.

    Cost: batches are computed in pieces of about 0.25 s, which costs less than 1 %. Outside the `with`, long
    work reads one context variable, and shorter calls none.

    >>> import polygpu as pg
    >>> with pg.progress(lambda x: print(x.what, x.done, x.total) if x.ended else None):
    ...     a = pg.Ring(4096, 97).random(1024)
    random values of 1024 polynomials 1024 1024
    """
    if callback is not None and not callable(callback):
        raise ParameterError(
            f"callback: {type(callback).__name__} cannot be called; give a function of one argument, or None"
        )
    display = _Display() if callback is None else None
    tokens = _report.set(callback or display), unusual.set(True)
    try:
        yield
    finally:
        _report.reset(tokens[0])
        unusual.reset(tokens[1])
        if display is not None:
            display.close()


reporting = _report.get  # the function that is told of long work; None outside `with progress()`


class Work:
    """Long work of `total` steps: `with Work(3, "tables modulo {} primes", 3) as work: ... work.step()`.

    when: whether the work is long; work that is not is never reported.
    """

    __slots__ = ("_began", "_done", "_report", "_total", "_what")

    def __init__(self, total: int, what: str, *values: object, when: bool = True) -> None:
        self._report, self._total = _report.get() if when else None, total
        self._done, self._began = 0, 0.0
        self._what = what if self._report is None else what.format(*values)

    def __enter__(self) -> Work:
        if self._report is not None:
            self._began = perf_counter()
            try:
                self._tell(False)
            except BaseException:
                self._tell(True)
                raise
        return self

    def __exit__(self, *error: object) -> None:
        if self._report is not None:
            if error[0] is None:
                self._done = self._total
            self._tell(True)

    def step(self, count: int = 1) -> None:
        """Report that `count` more steps are done."""
        if self._report is not None:
            self._done += count
            self._tell(False)

    def pieces(self, unit: int = 1, least: int = 1) -> Iterator[slice]:
        """All steps in slices of about 0.25 s each; one slice where progress is not reported.

        unit: the length of each slice but the last is a multiple of it.
        least: no slice is shorter, unless there are fewer steps.
        """
        if self._report is None:
            yield slice(0, self._total)
            return
        at, least = 0, -(-least // unit) * unit
        size = least
        while at < self._total:
            end = at + size if self._total - at >= size + least else self._total
            began = perf_counter()
            yield slice(at, end)
            seconds = perf_counter() - began
            self.step(end - at)
            size = max(least, int((end - at) * min(_PIECE / max(seconds, 1e-9), 64)) // unit * unit)
            at = end

    def _tell(self, ended: bool) -> None:
        assert self._report is not None
        self._report(Progress(self._what, self._done, self._total, perf_counter() - self._began, ended))


# ---- drawing ----


class _Display:
    """The default callback. A thread of its own draws the work under way, also while it does not advance."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock, self._closed = new_lock(), False
        self._thread: Thread | None = None
        self._running: dict[tuple[int, str], tuple[Progress, float]] = {}  # and the time of that report
        self._drawing: _Bars | _Lines | None = None

    def __call__(self, x: Progress) -> None:
        if os.getpid() != self._process:  # a child of fork() has no thread that draws
            return
        with self._lock:
            key = get_ident(), x.what
            if not x.ended:
                self._running[key] = x, perf_counter()
                if self._thread is None:
                    self._thread = Thread(target=self._draw_on, name="polygpu progress", daemon=True)
                    self._thread.start()
                return
            self._running.pop(key, None)
            if not self._running and (self._drawing or x.seconds >= _SHOWN):
                self._draw(x)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._closed = True
        if os.getpid() == self._process:
            with self._lock:
                self._running.clear()
                if self._drawing is not None:
                    self._draw(None)

    def _draw_on(self) -> None:
        while True:
            sleep(_TICK)
            if self._closed:
                return
            now = perf_counter()
            if any(now - then + x.seconds >= _SHOWN for x, then in list(self._running.values())):
                drawing = self._drawing or _drawing()  # without the lock, since importing rich takes a while
                with self._lock:
                    self._drawing = self._drawing or drawing
                    if self._running:
                        self._draw(None)

    def _draw(self, last: Progress | None) -> None:
        """Draw all work under way. If there is none, end with `last`, the work that ended last."""
        self._drawing = self._drawing or _drawing()
        now = perf_counter()
        works = [x._replace(seconds=now - then + x.seconds) for x, then in self._running.values()]
        with suppress(OSError, ValueError):  # stderr is closed, or its reader is gone: the work goes on
            if works:
                self._drawing.show(works)
            else:
                self._drawing.end(last)


def _drawing() -> _Bars | _Lines:
    with suppress(ImportError, OSError, ValueError):
        if sys.stderr is not None and sys.stderr.isatty():
            return _Bars()
    return _Lines()


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, in the plural if needed, for the text of a Work."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _line(x: Progress) -> str:
    count = f": {x.done} of {x.total}" if x.total > 1 else ""
    stopped = ", not completed" if x.ended and x.done < x.total else ""
    return f"polygpu: {x.what}{count}{stopped}, {x.seconds:.1f} s"


class _Lines:
    """Plain lines on stderr."""

    def __init__(self) -> None:
        self._at, self._pause, self._shown = 0.0, _LINE, ("", 0)

    def show(self, works: Sequence[Progress]) -> None:
        """Print a line for the innermost long work. The pauses double while it does not advance."""
        now = perf_counter()
        x = next((x for x in reversed(works) if x.seconds >= _LINE), None)
        if x is None:
            return
        moved = (x.what, x.done) != self._shown
        if now - self._at >= (_LINE if moved else self._pause):
            self._pause = _LINE if moved else 2 * self._pause
            self._at, self._shown = now, (x.what, x.done)
            self._print(x)

    def end(self, last: Progress | None) -> None:
        """Print a line for the work that ended last, if it took long."""
        if last is not None and last.seconds >= _LINE:
            self._at, self._pause = perf_counter(), _LINE
            self._print(last)

    def _print(self, x: Progress) -> None:
        if sys.stderr is not None:
            print(_line(x), file=sys.stderr, flush=True)


class _Bars:
    """Bars of rich. When all work has ended, they give way to one line."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[counts]} {task.fields[seconds]:.1f} s", markup=False),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,  # a program's streams are its own
            redirect_stderr=False,
        )
        self._tasks: dict[str, Any] = {}
        self._started = False

    def show(self, works: Sequence[Progress]) -> None:
        """Draw a bar for each work. The bar of a single step moves to and fro."""
        if not self._started:
            self._bars.start()
            self._started = True
        for what in self._tasks.keys() - {x.what for x in works}:
            self._bars.remove_task(self._tasks.pop(what))
        for x in works:
            if x.what not in self._tasks:
                self._tasks[x.what] = self._bars.add_task(x.what, total=None, counts="", seconds=0.0)
            total, counts = (x.total, f"{x.done}/{x.total}") if x.total > 1 else (None, "")
            self._bars.update(
                self._tasks[x.what], total=total, completed=x.done, counts=counts, seconds=x.seconds
            )
        self._bars.refresh()

    def end(self, last: Progress | None) -> None:
        """Remove the bars, and print a line for the work that ended last, if it took long."""
        if self._started:
            self._started = False
            for what in list(self._tasks):
                self._bars.remove_task(self._tasks.pop(what))
            self._bars.stop()
        if last is not None and last.seconds >= _SHOWN:
            self._bars.console.print(_line(last), markup=False, highlight=False)
