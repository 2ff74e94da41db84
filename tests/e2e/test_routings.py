"""Rows sent to experts in any way: all to one, to none of some, at random, with ties; against a
loop that sends each row to its experts, in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tensor_programs import assert_close, graph_of, results

MESHES = ("1x1", "2x2", "3x2", "2x5")
HIDDEN, FEATURES = 6, 5


def text(rows: int, experts: int, count: int, scores: str, options: str) -> str:
    """A layer of experts whose choice has a bias."""
    return f"""
model routed(L={rows}, E={HIDDEN}, X={experts}, F={FEATURES}) {{
  param router[E, X], bias[X], w_gate[E, X, F], w_up[E, X, F], w_down[X, F, E]
  main(x[L, E]) -> [L, E] {{
    gates = top_k({scores}, {count}, bias = bias{options})
    return x + (silu(x @ w_gate) * (x @ w_up) * gates) @ w_down
  }}
}}
"""


def tensors(rows: int, experts: int, bias: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    shapes = {
        "x": (rows, HIDDEN),
        "router": (HIDDEN, experts),
        "w_gate": (HIDDEN, experts, FEATURES),
        "w_up": (HIDDEN, experts, FEATURES),
        "w_down": (experts, FEATURES, HIDDEN),
    }
    found = {name: random.standard_normal(shape) for name, shape in shapes.items()}
    return {n: a.astype(np.float32).astype(float) for n, a in (found | {"bias": bias}).items()}


def sent(
    given: dict[str, np.ndarray], count: int, softmax: bool, normalise: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The layer's result, and how many rows each expert got."""
    x, bias = given["x"], given["bias"]
    found, load = x.copy(), np.zeros(len(bias), int)
    for row in range(len(x)):
        logits = x[row] @ given["router"]
        score = np.exp(logits) / np.exp(logits).sum() if softmax else 1 / (1 + np.exp(-logits))
        chosen = sorted(range(len(bias)), key=lambda e: (-(score + bias)[e], e))[:count]
        total = sum(score[e] for e in chosen) if normalise else 1.0
        for e in chosen:
            gate, up = (x[row] @ given[name][:, e] for name in ("w_gate", "w_up"))
            found[row] += score[e] / total * (gate / (1 + np.exp(-gate)) * up) @ given["w_down"][e]
            load[e] += 1
    return found, load


def check(
    folder: Path, mesh: str, bias: np.ndarray, rows: int, count: int, seed: int = 0
) -> np.ndarray:
    """The emitted program against the loop; how many rows each expert got."""
    softmax, normalise = seed % 2 == 0, seed % 3 == 0
    scores = "softmax(x @ router)" if softmax else "sigmoid(x @ router)"
    options = ", normalise = true" if normalise else ""
    given = tensors(rows, len(bias), bias, seed)
    wanted, load = sent(given, count, softmax, normalise)
    model = text(rows, len(bias), count, scores, options)
    assert {p.value.name for p in graph_of(model, mesh).function.params} == set(given)
    assert_close(results(folder, model, mesh, given), [wanted])
    return load


@pytest.mark.parametrize("mesh", MESHES)
def test_all_rows_go_to_one_expert(mesh: str, tmp_path: Path) -> None:
    bias = np.where(np.arange(5) == 3, 4.0, 0.0)
    assert check(tmp_path, mesh, bias, rows=7, count=1).tolist() == [0, 0, 0, 7, 0]


@pytest.mark.parametrize("mesh", MESHES)
def test_some_experts_get_no_rows(mesh: str, tmp_path: Path) -> None:
    bias = np.array([-4.0, 0, 0, -4, 0, -4])
    load = check(tmp_path, mesh, bias, rows=6, count=2)
    assert load.sum() == 12 and not load[[0, 3, 5]].any()


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("mesh", MESHES)
def test_every_row_goes_to_all_experts(mesh: str, rows: int, tmp_path: Path) -> None:
    assert check(tmp_path, mesh, np.zeros(3), rows, count=3).tolist() == [rows] * 3


@pytest.mark.parametrize("seed", range(8))
def test_random_routings(seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    experts = int(random.integers(1, 10))
    count = int(random.integers(1, experts + 1))
    bias = random.choice([0.0, 0.3, -0.3, 4.0], experts)
    rows = int(random.integers(1, 9))
    load = check(tmp_path, MESHES[seed % 4], bias, rows, count, seed)
    assert load.sum() == rows * count


@pytest.mark.parametrize("mesh", MESHES)
def test_of_equal_scores_the_first_are_chosen(mesh: str, tmp_path: Path) -> None:
    """Of each two experts whose columns of the router are the same. Quarters make sums exact."""
    given = tensors(4, 6, np.zeros(6), seed=1)
    for name in ("x", "router"):
        given[name] = np.round(4 * given[name]) / 4
    given["router"][:, 3:] = given["router"][:, :3]
    model = text(4, 6, 3, "sigmoid(x @ router)", "")
    wanted, load = sent(given, 3, softmax=False, normalise=False)
    assert load.sum() == 12
    assert_close(results(tmp_path, model, mesh, given), [wanted])
