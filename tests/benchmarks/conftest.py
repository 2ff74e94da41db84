"""The modules of the benchmarks, and the driver of tests of the CUDA back end, by their names."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "benchmarks/gpu", "tests/backends/cuda")
sys.path[:0] = [str(ROOT / folder) for folder in FOLDERS]
