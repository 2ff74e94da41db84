"""Gates of experts in emitted CSL beside a choice by sorting, and the scores that they come from."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
from csl_runs import emit, run_files, tile_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_csl_bf16 import in_bf16


@dataclass(frozen=True)
class Gates:
    """A ``top_k`` of ``rows``, of which the run says how many they are if they are ``told``; scores
    lie at a distance of ``step`` elements."""

    experts: int
    count: int
    groups: int = 1
    kept: int = 1
    best: int = 1
    normalise: bool = False
    biased: bool = False
    rows: int = 3
    told: bool = False
    kind: str = "f32"
    gates: str = ""
    turned: bool = False

    @property
    def text(self):
        rows = "0 +: n" if self.told else f"0 +: {self.rows}"
        shape = [self.experts, self.rows] if self.turned else [self.rows, self.experts]
        given = f"%a[:, {rows}] order [1, 0]" if self.turned else f"%a[{rows}]"
        dims, lanes = ("X, R", "i, j") if self.turned else ("R, X", "i, j")
        named = {
            "count": self.count,
            "groups": self.groups,
            "kept_groups": self.kept,
            "group_top": self.best,
            "normalise": str(self.normalise).lower(),
            "biased": str(self.biased).lower(),
        }
        options = ", ".join(f"{name} = {value}" for name, value in named.items())
        return f"""module @gates level(tile) holds(channels_matched) {{
  dims R = {self.rows}, X = {self.experts}
  {f"scalars n = 1..{self.rows}" if self.told else ""}
  mesh y = 1, x = 1
  buffer %a : {self.kind}[{", ".join(map(str, shape))}] {{role = in}}
  buffer %bias : {self.kind}[{self.experts}] {{role = in}}
  buffer %g : {self.gates or self.kind}[{self.rows}, {self.experts}] {{role = out}}
  port @a in {self.kind}[{dims}] : %a {{lanes = [{lanes}], element = [{lanes}]}}
  port @bias in {self.kind}[X] : %bias {{lanes = [i], element = [i]}}
  port @g out {self.gates or self.kind}[R, X] : %g {{lanes = [i, j], element = [i, j]}}
  program @main {{
    tile.fill %g {{value = 7.0}}
    tile.top_k %g[{rows}], {given}{", %bias" if self.biased else ""} {{{options}}}
  }}
}}
"""


def in_type(kind, numbers):
    """The nearest numbers of a type, those of bf16 as f32."""
    if kind == "bf16":
        return in_bf16(numbers).astype(np.float32)
    return np.asarray(numbers).astype({"f16": np.float16, "f32": np.float32}[kind])


def chosen(case, scores, bias):
    """The gates of one row, by sorting numbers with their places."""
    rated = in_type(case.kind, scores + bias if case.biased else scores).astype(np.float64)
    size = case.experts // case.groups
    groups = [sum(sorted(rated[g * size :][:size])[-case.best :]) for g in range(case.groups)]
    kept = sorted(range(case.groups), key=lambda g: (-groups[g], g))[: case.kept]
    allowed = [e for e in range(case.experts) if e // size in kept]
    best = sorted(allowed, key=lambda e: (-rated[e], e))[: case.count]
    found = np.zeros(case.experts)
    found[best] = scores[best]
    return found / (found.sum() + 1e-20) if case.normalise else found


def scores_of(case, seed, spread=0):
    """Scores above zero; of ``spread`` several they are so many numbers, so that there are ties."""
    rng = np.random.default_rng(seed)
    shape = (case.rows, case.experts)
    a = rng.integers(1, spread + 1, shape) / 8 if spread else rng.uniform(0.001, 1, shape)
    bias = rng.integers(-2, 3, case.experts) / 8
    return in_type(case.kind, a), in_type(case.kind, bias)


def simulate(case, tensors, arch, folder, monkeypatch, rows=0):
    """Compare a run with what is chosen by sorting; the facts of the program and its cycles."""
    scores, bias = tensors
    files = emit({"main": tile_text(case.text, arch)})
    given_scores = np.ascontiguousarray(scores.T) if case.turned else scores
    options = ("--n", str(rows or case.rows)) if case.told else ()
    found, cycles = run_files(
        files, {"a": given_scores, "bias": bias}, folder, monkeypatch, options=options
    )
    several = rows or case.rows
    wanted = np.array([chosen(case, row, bias) for row in scores[:several]])
    gates = found["g"].astype(np.float64)
    unit = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-22}[case.gates or case.kind]
    np.testing.assert_allclose(gates[:several], wanted, rtol=unit)
    assert np.array_equal(gates[several:], np.full_like(gates[several:], 7))
    return json.loads(files["report.json"]), cycles


CASES = [
    (Gates(8, 2), "wse3"),
    (Gates(1, 1, rows=1), "wse2"),
    (Gates(7, 3, normalise=True, kind="f16"), "wse2"),
    (Gates(12, 4, 4, 2, 2, True, True, kind="bf16"), "wse3"),
    (Gates(6, 2, 3, 2, 1, rows=5, told=True), "wse2"),
    (Gates(8, 3, 4, 2, 2, True, True, kind="f16", turned=True, told=True), "wse3"),
]


@pytest.mark.parametrize(("case", "arch"), CASES)
@pytest.mark.parametrize("spread", [0, 2])
def test_the_first_of_the_largest_are_chosen(case, arch, spread, tmp_path, monkeypatch):
    tensors = scores_of(case, 1, spread)
    simulate(case, tensors, arch, tmp_path, monkeypatch, rows=2 if case.told else 0)
