"""Run a study on this machine's GPU: its variants are verified and timed, and counted where ncu may do so.

python -m benchmarks.studies --list
python -m benchmarks.studies STUDY [--tune | --part PART] [--out DIR]
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from polygpu._backends.cuda import absence

from ..harness import RESULTS
from . import STUDIES, ncu, runner


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studies", description=__doc__)
    parser.add_argument("study", nargs="?", choices=STUDIES)
    parser.add_argument("--list", action="store_true", help="the studies there are")
    parser.add_argument("--out", type=Path, default=RESULTS, help="directory of the results")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--tune", action="store_true", help="measure only what the study chooses from")
    what.add_argument("--part", help="measure one part of the study")
    what.add_argument("--counted", action="store_true", help=argparse.SUPPRESS)  # the child of ncu.count
    options = parser.parse_args(arguments)
    if options.study is None and (options.tune or options.part or options.counted):
        parser.error(f"which study? {', '.join(STUDIES)}")
    if options.list or options.study is None:
        for name, question in STUDIES.items():
            print(f"{name}: {question}")
        return 0
    study = importlib.import_module(f".{options.study}", __package__)
    parts = study.PARTS
    if options.tune and not hasattr(study, "tune"):
        parser.error(f"{options.study} has nothing to tune")
    if options.part is not None and options.part not in parts:
        parser.error(f"{options.study} has no part {options.part!r}; its parts: {', '.join(parts)}")
    if (reason := absence(0)) is not None:
        print(f"cuda:0: {reason}")
        return 1
    if options.counted:
        ncu.expose(runner.launches(study.groups()))
        return 0
    chosen = [study.tune] if options.tune else [parts[options.part]] if options.part else parts.values()
    return runner.run(chosen, options.out)


if __name__ == "__main__":
    raise SystemExit(main())
