"""Modules are drawn by the fuzzer and by the judge of random programs."""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("fuzz", "differential")]
