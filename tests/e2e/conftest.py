"""The simulator runs emitted CSL for these tests as it does for those of the back end, and a fake
driver what is emitted for GPUs."""

import re
import sys
from pathlib import Path

import pytest

BACKENDS = Path(__file__).parents[1] / "backends"
sys.path[:0] = [str(BACKENDS / name) for name in ("csl", "cuda")]

from on_gpu import DRIVER, OnGpu  # noqa: E402

import meshc.backends.cuda  # noqa: E402

if DRIVER:
    meshc.backends.cuda.CpuMachine = OnGpu  # before any test has its name


def pytest_collection_modifyitems(items):
    """Edited kernels may end what a process has on a GPU, and no order is asked of one."""
    if DRIVER:
        skipped = pytest.mark.skip(reason="for the executor alone")
        for item in items:
            if re.search("edit|order|schedule", item.name):
                item.add_marker(skipped)
