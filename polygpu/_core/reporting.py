"""Progress of long work: what is under way, how much of it is done, and for how long it has run.

An operation that may take longer than about 10 ms reports its progress through a Work. Outside
`with progress()` a Work reads one context variable and reports nothing. Shorter operations do not use Work.
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

LONG = 1 << 22  # residues; on the host, a product or transform of this many takes about 10 ms on one core

_PIECE = 0.25  # seconds of work between two reports
_SHOWN = 0.5  # seconds after which a bar is drawn for work
_TICK = 0.1  # seconds between two updates of the bars
_LINE = 1.0  # seconds after which a plain line is printed for work, and seconds between two lines


class Progress(NamedTuple):
    """The argument of a callback: the state of work at its start, after some steps, or at its end."""

    what: str  # such as "primitive root modulo 3329"
    done: int  # steps that are done
    total: int  # steps of the whole work
    seconds: float  # since the work began
    ended: bool  # whether this is the last report; done < total if the work failed or was interrupted


Report = Callable[[Progress], Any]

_report: ContextVar[Report | None] = ContextVar("polygpu_progress", default=None)


@contextmanager
def progress(callback: Report | None = None) -> Iterator[None]:
    """Show long work inside a `with`: what it is, how much of it is done, and for how long it has run.

    If stderr is a terminal and `rich` is installed, bars on stderr show work of more than half a second.
    Otherwise plain lines on stderr show work of more than a second: at most one line a second, and one at
    the end of the work. Results of the work do not change. Each thread has its own setting.

    Progress is shown for the tables and roots of large rings, for kernels that are compiled for a GPU, for
    to_bigints() and ring(x) of many Python ints, and for ntt_primes. On the CPU it is also shown for
    products, transforms and random values of large batches, blind rotations, inverses, and large
    linalg.matmul.

    Args:
        callback: a function of one argument that is called instead of the display. The argument has five
            fields: `what`, a text; `done` and `total`, in steps of the work; `seconds` since the work began;
            and `ended`, which is True in the last call for this work. The callback runs in the thread that
            does the work. It is also called for work of only about ten milliseconds, and for work inside
            other work. If it raises an exception, the work ends with this exception, as with Ctrl-C.

    Raises:
        ParameterError: the callback cannot be called.

    Cost: batches are computed in pieces of about 0.25 s, which costs less than 1 %. Outside the `with`, a
    long operation reads one context variable, and a short one reads none.

    >>> import polygpu as pg
    >>> with pg.progress(lambda x: print(x.what, x.done, x.total) if x.ended else None):
    ...     a = pg.Ring(4096, 97).random(1024)
    random values of 1024 polynomials 1024 1024
    """
    if callback is not None and not callable(callback):
        raise ParameterError(
            f"callback must be a function of one argument or None, not {type(callback).__name__}."
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


reporting = _report.get  # returns the callback or display, or None outside `with progress()`


class Work:
    """Long work of `total` steps: `with Work(3, "tables modulo {} primes", 3) as work: ... work.step()`.

    what: a format string that describes the work. `values` are its arguments.
    when: whether the work is long. If not, nothing is reported.
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
        """Yield slices that cover all steps and take about 0.25 s each, or one slice if nothing is reported.

        unit: the length of each slice except the last is a multiple of `unit`.
        least: each slice has at least `least` steps, unless the work has fewer.
        """
        if self._report is None:
            yield slice(0, self._total)
            return
        at, least = 0, -(-least // unit) * unit
        size = least
        while at < self._total:
            # If fewer than `least` steps would remain after this piece, this piece takes all remaining steps.
            end = at + size if self._total - at >= size + least else self._total
            began = perf_counter()
            yield slice(at, end)
            seconds = perf_counter() - began
            self.step(end - at)
            # At the measured speed, the next piece takes _PIECE seconds. It has at most 64 times the steps of
            # this piece.
            size = max(least, int((end - at) * min(_PIECE / max(seconds, 1e-9), 64)) // unit * unit)
            at = end

    def _tell(self, ended: bool) -> None:
        assert self._report is not None
        self._report(Progress(self._what, self._done, self._total, perf_counter() - self._began, ended))


# ---- drawing ----


class _Display:
    """The default callback. A separate thread draws the running work, also during a long step."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock, self._closed = new_lock(), False
        self._thread: Thread | None = None
        # (thread, text `what` of a Work) -> (last report of the Work, time of this report)
        self._running: dict[tuple[int, str], tuple[Progress, float]] = {}
        self._drawing: _Bars | _Lines | None = None

    def __call__(self, x: Progress) -> None:
        if os.getpid() != self._process:  # the thread that draws does not exist in a child of fork()
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
        """Stop drawing, and remove the bars from the terminal."""
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
        """Draw all running work. If none is running, show `last`, the last report, and stop drawing."""
        self._drawing = self._drawing or _drawing()
        now = perf_counter()
        works = [x._replace(seconds=now - then + x.seconds) for x, then in self._running.values()]
        with suppress(OSError, ValueError):  # stderr is closed or a broken pipe: continue the work
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
        """Print a line for the innermost long work, if a line is due.

        If no step of the work ended since the last line, the pause before the next line doubles.
        """
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
    """Bars drawn by the package `rich`. When all work has ended, one line replaces them."""

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
            redirect_stdout=False,  # rich must not replace the streams of the user's program
            redirect_stderr=False,
        )
        self._tasks: dict[str, Any] = {}
        self._started = False

    def show(self, works: Sequence[Progress]) -> None:
        """Draw a bar for each work. If the work has a single step, the bar only shows that it is running."""
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
