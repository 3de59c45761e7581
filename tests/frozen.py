"""A program that PyInstaller freezes in `.ci/run`: the command line, and an example."""

import sys

from polygpu.cli import main
from polygpu.examples import ckks

if __name__ == "__main__":
    if sys.argv[1:] == ["example"]:
        print(ckks.run(seed=bytes(32)))
    else:
        sys.exit(main())
