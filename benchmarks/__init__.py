"""Benchmarks of polygpu and its peers; each writes JSON lines into results/, report.py makes the tables."""

import sys
from pathlib import Path

# `python -m benchmarks.cpu` puts the checkout first on the path, and its sources have no native core:
# what is installed comes before them.
_checkout = Path(__file__).resolve().parent.parent
sys.path[:] = [p for p in sys.path if Path(p).resolve() != _checkout] + [str(_checkout)]
