"""The judge of random programs: it sees mistakes, and lets rounding pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
from alterations import altered
from bounded import Arithmetic, Rules, exact, rounded
from cases import (
    SHARP,
    TIMES,
    Case,
    Unsharp,
    computed,
    draw_case,
    expected,
    in_regions,
    off_by_rounding,
)
from draw_checkpoints import Checkpoint
from drawn_programs import Apply, Program, Reference, Tensor, source
from judging import compare, compile_case, other_sums
from operations import Binary, Product, Scale
from reducing import reduced


@cache
def case_of_python(index: int) -> Case:
    return draw_case(11, index, {"python": 1.0})


def drawn(count: int) -> list[Case]:
    return [case_of_python(index) for index in range(count)]


def results(case: Case) -> list[list[np.ndarray]]:
    """What a program computes that has its values and knows of no errors."""
    return [[r.value for r in run] for run in computed(case)]


def mistakes(cases: list[Case], part: int) -> tuple[Counter[str], Counter[str]]:
    """By type, how many wrong programs (one of ``part`` of each case) the judge sees, and how many
    it does not, whose results are then off by no more than rounding may explain."""
    seen, small = Counter[str](), Counter[str]()
    for case in cases:
        right = expected(case)
        kind = case.program.kinds.stored
        for name, program in islice(altered(case.program), case.seed % part, None, part):
            try:
                found = results(replace(case, program=program))
            except Unsharp:
                continue  # it leaves the range of its type
            if all(
                np.allclose(r.value, f, rtol=1e-6, atol=1e-9)
                for run, arrays in zip(right, found, strict=True)
                for r, f in zip(run, arrays, strict=True)
            ):
                continue  # a softmax of one element, a norm behind a norm: no mistake at all
            if compare(right, found).kind == "mismatch":
                seen[kind] += 1
                continue
            small[kind] += 1
            for run, arrays in zip(right, found, strict=True):
                for r, f in zip(run, arrays, strict=True):
                    assert np.abs(f - r.value).max() <= SHARP[kind] * np.abs(r.value).max(), name
    return seen, small


def test_every_mistake_that_shows_is_seen() -> None:
    """Whatever moves a result by more than rounding may explain; nearly all else as well."""
    seen, small = mistakes(drawn(45), 3)
    assert seen.total() > 200 and len(seen) == 3
    assert small["f32"] <= 0.01 * seen["f32"]
    assert small.total() <= 0.05 * seen.total()


def test_mistakes_in_models_of_kernels_are_seen() -> None:
    """Their results may all be off by the same part of the largest, which hides little."""
    drawn_apart = (draw_case(11, index, {"cuda": 1.0}) for index in range(1, 61, 7))
    seen, small = mistakes([case for case in drawn_apart if case.form == "requests"], 6)
    assert seen["f16"] > 10 and seen["bf16"] > 20
    assert small.total() <= 0.05 * seen.total()


@pytest.mark.parametrize("stored", ["f32", "f16", "bf16"])
def test_arithmetic_in_the_type_itself_passes(stored: str) -> None:
    """A chain of steps, each rounded as a program would, stays within the bound and uses it."""
    random = np.random.default_rng(3)
    rules = Rules(Arithmetic(stored))
    worst = 0.0
    for _ in range(50):
        x, w, g = (rounded(random.standard_normal(s), stored) for s in ((5, 24), (24, 24), 24))
        bounded = rules.contract(exact("LE", x), exact("EF", w / 5), ("E",))
        bounded = rules.silu(rules.multiply(bounded, exact("F", g)))
        y = rounded(x @ (w / np.float32(5)), stored)
        y = rounded(y * g, stored)
        y = rounded(y / (1 + np.exp(-y)), stored)
        found = compare([[bounded]], [[y]])
        assert found.kind == "match"
        worst = max(worst, found.ratio)
    assert worst > 0.05


def test_results_of_other_shapes_or_numbers_of_them_are_seen() -> None:
    case = next(c for c in drawn(12) if c.form == "main" and expected(c)[0][0].value.size > 1)
    right, found = expected(case), results(case)
    assert compare(right, found).kind == "match"
    assert compare(right, [[*run, run[0]] for run in found]).code == "results"
    assert compare(right, [[f[None] for f in run] for run in found]).code == "shape"
    for bad in (np.nan, np.inf):
        broken = [[f.copy() for f in run] for run in found]
        broken[0][0].flat[-1] = bad
        assert compare(right, broken).code == "numbers"
    turned = [[f[..., ::-1] for f in run] for run in found]
    assert compare(right, turned).code == "numbers"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["csl", "python"])
def test_sums_of_prompts_in_another_type_are_seen(target: str, tmp_path: Path) -> None:
    """However little they move its results."""
    right = Arithmetic("f16", "f32", "f16" if target == "csl" else "f32")
    prompts = (draw_case(11, index, {target: 1.0}) for index in count())
    case = next(c for c in prompts if c.form == "prefill" and c.program.kinds == right)
    other = replace(case.program, kinds=replace(right, sums="f16"))
    for program, found in ((case.program, "f32"), (other, "f16")):
        compiled = compile_case(replace(case, program=program), tmp_path)
        assert {kind for kind in ("f16", "f32") if not other_sums(compiled, kind)} == {found}


def test_cases_are_the_same_for_the_same_seed() -> None:
    for index, one in enumerate(drawn(8)):
        other = draw_case(11, index, {"python": 1.0})
        assert source(one.program) == source(other.program) and one.words() == other.words()
        assert all(np.array_equal(a, other.weights()[n]) for n, a in one.weights().items())


def test_a_failing_case_is_made_small() -> None:
    """What fails is any product whose result is then added to something."""

    def fails(case: Case) -> bool:
        made = {s.result: s for s in case.program.body if isinstance(s, Apply)}
        return any(
            isinstance(s.operation, Binary)
            and any(isinstance(made[a].operation, Product) for a in s.args if a in made)
            for s in made.values()
        )

    for case in islice(
        (c for c in map(case_of_python, count()) if c.form == "main" and fails(c)), 3
    ):
        small = reduced(case, fails)
        assert fails(small) and len(small.program.body) <= 3
        assert set(small.program.extents.values()) == {1}
        assert small.options == {"mesh": "1x1"}


def test_a_case_in_regions_is_made_small() -> None:
    case = in_regions(next(c for c in map(case_of_python, count()) if c.has_layers), 2)
    small = reduced(case, lambda c: c.has_layers)
    assert small.options["mesh"] == "r=2,y=1,x=1"


def test_the_text_says_what_is_meant() -> None:
    """Brackets where the operators of the language need them, and nowhere else."""
    steps = (
        Apply("s", Binary("+"), ("x", "z"), inline=True),
        Apply("y", Product(("E",)), ("s", "w"), inline=True),
        Apply("d", Binary("-"), ("y", "y2"), inline=True),
        Apply("n", Scale("-{}", -1.0), ("d",)),
    )
    program = Program(
        {"L": 2, "E": 3, "F": 2},
        (Tensor("x", ("L", "E")), Tensor("z", ("L", "E")), Tensor("y2", ("L", "F"))),
        (Tensor("w", ("E", "F")),),
        steps,
        ("n",),
    )
    assert "    n = -((x + z) @ w - y2)\n" in source(program)
    x, z, w, y2 = np.ones((2, 3)), np.ones((2, 3)), np.ones((3, 2)), np.ones((2, 2))
    (found,) = Reference(program, {"w": w}, 0).step({"x": x, "z": z, "y2": y2})
    assert found.dims == ("L", "F") and (found.value == -5).all()


def test_what_an_end_reads_is_kept_before_it_is_assigned() -> None:
    """The end of a carried value may be written out and read one that has its new value by then."""
    case = draw_case(2212, 793, {"python": 1.0})
    assert "c2 = old_c2 + (old_c1 + s4)" in source(case.program)


def test_small_results_of_a_case_may_be_off_as_its_large_ones():
    """Two logits that happen to be small come of sums as large as others."""
    large, small = (exact(("V",), np.array(values)) for values in ([1.0, 0.5], [0.1, -0.05]))
    moved = exact(("V",), np.array([0.1, -0.05 + 2.0**-7]))
    kinds = Arithmetic("bf16", "f32", "f32")
    found = off_by_rounding([(large, large), (small, moved)], kinds)
    assert [set(one.error) for one in found] == [{TIMES * 2.0**-7}] * 2
    assert set(off_by_rounding([(small, small)], kinds)[0].error) == {TIMES * 0.1 * 2.0**-8}


def test_either_of_two_experts_that_are_as_likely_may_be_chosen():
    """Half of the ways to round weights choose another one, which moves logits by 0.3."""
    options = {"dtype": "f16", "seq": 21}
    case = Checkpoint("tiny_latent_experts/deepseek-v2-8x3", "csl", options, 2087031445, 13, 4)
    assert case.expected(None)[0][0].error.min() > 0.3
