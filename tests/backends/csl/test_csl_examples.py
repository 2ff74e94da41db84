"""The examples of docs/tile-level.md as CSL, as far as their kernels are emitted."""

import re
from pathlib import Path

import numpy as np
import pytest
from csl_runs import emit, run_files, run_steps

from meshc.devices import device
from meshc.ir.parser import parse_module
from meshc.support.spans import Source

PAGE = Path(__file__).parents[3] / "docs" / "tile-level.md"
BLOCKS = re.findall(r"^```meshir runnable\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
RANDOM = np.random.default_rng(3)
# Colors as the page gives them; those of columns like those of rows.
RING = ("{{ {0} : {1} = 2; {0} + 2 : {1} = 0; {0} + 2 : {1} = 3; {0} + 1 : true }}",
        "{{ {0} : {1} = 0; {0} + 1 : {1} = 3; {0} + 2 : true }}")  # fmt: skip
COLORS = {
    "left": tuple(text.format(0, "x") for text in RING),
    "up": tuple(text.format(3, "y") for text in RING),
    "up0": ("y mod 2", "(y + 1) mod 2"),
    "up1": ("floor(y/3) mod 2 + 2", "(floor(y/3) + 1) mod 2 + 2"),
    "down": ("4", "4"),
    "push1": ("x", "1 - x"),
}


def example(name, arch):
    (text,) = (text for text in BLOCKS if f"module @{name} " in text)
    module = parse_module(Source("example", text))
    module.device = device(arch)
    for channel in module.channels:
        channel.send_color, channel.recv_color = COLORS[channel.name]
    return module


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_mesh_gemm(arch, tmp_path, monkeypatch):
    a, b = RANDOM.integers(-4, 5, (2, 8, 8)).astype(np.float32)
    files = emit({"main": example("mesh_gemm", arch)})
    found, _ = run_files(files, {"A": a, "B": b}, tmp_path, monkeypatch)
    np.testing.assert_array_equal(found["C"], a @ b)


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_tree(arch, tmp_path, monkeypatch):
    part = RANDOM.integers(-9, 10, (9, 1, 4)).astype(np.float32)
    files = emit({"main": example("tree", arch)})
    found, _ = run_files(files, {"part": part}, tmp_path, monkeypatch)
    np.testing.assert_array_equal(found["sums"], np.broadcast_to(part.sum(0), part.shape))


@pytest.mark.parametrize("arch", ["wse2", "wse3"])
def test_split_token(arch, tmp_path, monkeypatch):
    """Attention of six tokens, one after the other, of two heads whose cache lies on two PEs."""
    queries, keys, values = RANDOM.normal(size=(3, 6, 2, 4)).astype(np.float32)
    files = emit({"main": example("split_token", arch)})
    steps = [
        ({"q": queries[n], "kn": keys[n], "vn": values[n]}, {"pos": n}) for n in range(len(keys))
    ]
    found = run_steps(files, {}, steps, tmp_path, monkeypatch)
    for n, outputs in enumerate(found):
        scores = np.exp(np.einsum("hd,shd->hs", queries[n], keys[: n + 1]))
        weights = scores / scores.sum(1, keepdims=True)
        wanted = np.einsum("hs,shd->hd", weights, values[: n + 1])
        np.testing.assert_allclose(outputs["o"], wanted, rtol=1e-5, atol=1e-6)
