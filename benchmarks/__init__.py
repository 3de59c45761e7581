"""Benchmarks of polygpu and other libraries, which write JSON lines into results/. report.py makes tables."""

import sys
from pathlib import Path

# `python -m benchmarks.cpu` puts the checkout first on the path. Its sources have no compiled core, so the
# installed package must come first.
_checkout = Path(__file__).resolve().parent.parent
sys.path[:] = [p for p in sys.path if Path(p).resolve() != _checkout] + [str(_checkout)]
