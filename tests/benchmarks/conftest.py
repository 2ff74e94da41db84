"""The benchmark's modules, and the driver of the tests of the CUDA back end, by their names."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "gpu"), str(ROOT / "tests" / "backends" / "cuda")]
