"""Emitted operations in the maker's own compiler, which takes them or not; nothing runs.

Its version 1.1.1, the newest for Debian 12, knows reductions, broadcasts and turned blocks by other
names than the simulator 1.1.6, so that operations with these are not asked about."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ttlang_cases import drawn, llama

HERE = Path(__file__).parent
HAS_COMPILER = find_spec("ttl") is not None and find_spec("ttnn") is not None
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="the maker's compiler is not installed"),
]
OTHER_NAMES = ("ttl.block", "'shape'")
"""What the compiler says of those."""
SIZES = {"E": 128, "H": 2, "G": 1, "D": 64, "F": 256, "layers": 1}


def said_of(case, folder):
    """What the compiler says of each operation of a program."""
    case.compiled(folder)
    phase = case.flags.get("phase", "main")
    command = [sys.executable, str(HERE / "compiled_by_maker.py"), str(folder), phase]
    chip = os.environ | {"TT_METAL_MOCK_CLUSTER_DESC_PATH": str(HERE / "blackhole_p150.yaml")}
    ran = subprocess.run(command, capture_output=True, text=True, env=chip)
    line = next((line for line in ran.stdout.splitlines() if line.startswith("{")), None)
    assert line is not None, ran.stdout[-2000:] + ran.stderr[-2000:]
    return json.loads(line)


def check(said, least):
    refused = {
        name: words
        for name, words in said.items()
        if words != "accepted" and not any(other in words for other in OTHER_NAMES)
    }
    assert refused == {}
    assert list(said.values()).count("accepted") >= least


def test_operations_of_a_llama(tmp_path):
    check(said_of(llama(1, "2x2", 64, **SIZES), tmp_path), 12)


PRODUCTS = [seed for seed in range(0, 60, 4) if drawn(seed).mesh != "1x1"][:6]


@pytest.mark.parametrize("seed", PRODUCTS)
def test_products_of_many_meshes(seed, tmp_path):
    check(said_of(drawn(seed), tmp_path), 1)
