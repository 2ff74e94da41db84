"""Gates of experts in emitted CSL beside a choice by sorting; single edits of it are noticed."""

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
    of a row lie one behind the other, or ``turned``, those of an expert do."""

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
  buffer %g : {self.kind}[{self.rows}, {self.experts}] {{role = out}}
  port @a in {self.kind}[{dims}] : %a {{lanes = [{lanes}], element = [{lanes}]}}
  port @bias in {self.kind}[X] : %bias {{lanes = [i], element = [i]}}
  port @g out {self.kind}[R, X] : %g {{lanes = [i, j], element = [i, j]}}
  program @main {{
    tile.fill %g {{value = 7.0}}
    tile.top_k %g[{rows}], {given}{", %bias" if self.biased else ""} {{{options}}}
  }}
}}
"""


KINDS = ["f16", "bf16", "f32"]


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


def simulate(case, tensors, arch, folder, monkeypatch, rows=0, edit=None):
    """Compare a run with what is chosen by sorting; the facts of the program and its cycles. Of
    ``edit`` the first is replaced by the second in the program of a PE."""
    scores, bias = tensors
    files = emit({"main": tile_text(case.text, arch)})
    if edit:
        assert edit[0] in files["main.csl"], files["main.csl"]
        files["main.csl"] = files["main.csl"].replace(*edit)
    given_scores = np.ascontiguousarray(scores.T) if case.turned else scores
    several = rows or case.rows
    options = ("--n", str(several)) if case.told else ()
    inputs = {"a": given_scores, "bias": bias}
    found, cycles = run_files(files, inputs, folder, monkeypatch, options=options)
    wanted = np.array([chosen(case, row, bias) for row in scores[:several]])
    gates = found["g"].astype(np.float64)
    unit = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-22}[case.kind]
    np.testing.assert_allclose(gates[:several], wanted, rtol=unit)
    assert np.array_equal(gates[several:], np.full_like(gates[several:], 7))
    return json.loads(files["report.json"]), cycles


CASES = [
    (Gates(8, 2), "wse3"),
    (Gates(12, 4, 4, 2, 2, True, True, kind="bf16"), "wse3"),
    (Gates(6, 2, 3, 2, 1, rows=5, told=True), "wse2"),
    (Gates(8, 3, 4, 2, 2, True, True, kind="f16", turned=True, told=True), "wse3"),
    (Gates(1, 1, rows=1), "wse2"),
    (Gates(7, 3, normalise=True, kind="f16"), "wse2"),
]


@pytest.mark.parametrize(
    ("case", "arch"),
    [pytest.param(*one, marks=pytest.mark.slow if n > 3 else ()) for n, one in enumerate(CASES)],
)
def test_the_first_of_the_largest_are_chosen(case, arch, tmp_path, monkeypatch):
    """There are two numbers of which all scores are."""
    tensors = scores_of(case, 1, spread=2)
    simulate(case, tensors, arch, tmp_path, monkeypatch, rows=2 if case.told else 0)


@pytest.mark.parametrize(
    ("case", "arch"),
    [
        (Gates(64, 6, 8, 3, 2, True, True, rows=1, kind="f16"), "wse2"),
        pytest.param(Gates(128, 8, rows=1), "wse3", marks=pytest.mark.slow),
        pytest.param(Gates(60, 4, normalise=True, rows=5), "wse2", marks=pytest.mark.slow),
        pytest.param(Gates(24, 5, 3, 1, 4, False, True, rows=2), "wse3", marks=pytest.mark.slow),
    ],
)
def test_predicted_cycles(case, arch, tmp_path, monkeypatch):
    """Within a twentieth; a choice takes as long whatever is chosen."""
    facts, cycles = simulate(case, scores_of(case, 3), arch, tmp_path, monkeypatch)
    assert facts["predicted_cycles"] == pytest.approx(cycles, rel=0.05)


EDITS = [
    ("if (most == largest)", "if (most != largest)"),
    ("lane += half", "lane += 0"),
    ("var many: i16 = 12", "var many: i16 = 6"),
    ("var many: i16 = 4", "var many: i16 = 3"),
    ("(&largest, largest, scratch_f32_12)", "(&largest, largest, scratch_f32_3)"),
    ("scratch_f32[lane] = @bitcast(f32, @as(u32, 0xff800000));", ""),
    ("total += ", "total -= "),
    ("1.0 / (total", "2.0 / (total"),
    ("@range(i16, 4)) |_|", "@range(i16, 3)) |_|"),
    ("@range(i16, 2)) |_|", "@range(i16, 1)) |_|"),
    ("+= largest", "-= largest"),
    ("scratch_f32[group + 12] != ", "scratch_f32[group + 12] == "),
    ("g[12 * i + lane] = a[", "g[12 * i] = a["),
    ("@fadds(", "@fsubs("),
]


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=() if n == 5 else pytest.mark.slow) for n in range(len(EDITS))]
)
def test_single_edits_are_noticed(number, tmp_path, monkeypatch):
    case = Gates(12, 4, 4, 2, 2, True, True, rows=4)
    with pytest.raises((AssertionError, SystemExit)):
        simulate(case, scores_of(case, 5), "wse3", tmp_path, monkeypatch, edit=EDITS[number])


@st.composite
def cases(draw):
    groups, size = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    kept = draw(st.integers(1, groups))
    case = Gates(
        groups * size,
        draw(st.integers(1, kept * size)),
        groups,
        kept,
        draw(st.integers(1, min(size, 2))),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.integers(1, 5)),
        draw(st.booleans()),
        draw(st.sampled_from(KINDS)),
        draw(st.booleans()),
    )
    spread = draw(st.sampled_from([0, 1, 3]))
    rows = draw(st.integers(1, case.rows))
    return case, scores_of(case, draw(st.integers(0, 99)), spread), rows


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[*HealthCheck])
@given(drawn=cases(), arch=st.sampled_from(["wse2", "wse3"]))
def test_many_drawn_choices(drawn, arch, tmp_path_factory):
    case, tensors, rows = drawn
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("gates")
        simulate(case, tensors, arch, folder, patch, rows if case.told else 0)
