"""Spec text of passes: read and printed back, mistakes with their places."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshc
from meshc.passes.base import Pass
from meshc.passes.registry import pipeline_text
from meshc.passes.spec import make_pass, parse_specs
from meshc.pipelines import (
    CHOOSING,
    CLUSTERING,
    CODING,
    CUTTING,
    FUSING,
    KEEPING,
    NODE_STAGES,
    RANK_PASSES,
    REQUESTS_BEHIND,
    RESOURCE_STAGES,
    SERVING_STAGES,
    STAGES,
    STREAMING,
    TASK_STAGES,
    pipeline_to,
    pipeline_to_kernels,
    serving_passes,
)


@dataclass(frozen=True)
class Sample(Pass):
    """One option of each kind."""

    NAME: ClassVar[str] = "sample"

    word: str = ""
    group_size: int = 2
    share: float = 0.5
    strict: bool = False
    axes: tuple[str, ...] = ("x",)


def read(text):
    (spec,) = parse_specs(text)
    return make_pass(Sample, spec)


@given(
    st.builds(
        Sample,
        word=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12),
        group_size=st.integers(-(10**9), 10**9),
        share=st.floats(0, 1e6, allow_nan=False).map(lambda v: round(v, 6)),
        strict=st.booleans(),
        axes=st.lists(st.sampled_from(["x", "y", "a b", "]", '"']), max_size=3).map(tuple),
    )
)
def test_every_pass_survives(sample):
    assert read(str(sample)) == sample


def test_an_option_given_twice_is_refused():
    with pytest.raises(meshc.MeshcError, match="has the option 'word' twice"):
        read("sample{word=a,word=b}")


def test_defaults_are_left_out():
    assert str(Sample()) == "sample"
    assert str(Sample(group_size=4, strict=True)) == "sample{group-size=4,strict=true}"


def test_options_by_name():
    assert Sample().options() == {
        "word": "",
        "group-size": 2,
        "share": 0.5,
        "strict": False,
        "axes": ("x",),
    }


@pytest.mark.parametrize("cls", meshc.PASSES, ids=lambda cls: cls.NAME)
def test_registered_passes_survive(cls):
    assert meshc.parse_pipeline(str(cls())) == [cls()]


def test_pipelines_survive():
    passes = meshc.parse_pipeline(" canonicalize , partition{grid=4x4} ,select-collective{k=2}")
    assert passes[1] == meshc.Partition(grid="4x4")
    assert pipeline_text(passes) == "canonicalize,partition{grid=4x4},select-collective{k=2}"
    assert meshc.parse_pipeline("") == []


def test_stages_are_complete_and_in_order():
    every = [name for stage in STAGES.values() for name in stage]
    others = (
        FUSING,
        *SERVING_STAGES,
        *NODE_STAGES,
        *REQUESTS_BEHIND.values(),
        *RESOURCE_STAGES,
        KEEPING,
        STREAMING,
        CODING,
        CHOOSING,
        CLUSTERING,
        CUTTING,
        *RANK_PASSES,
        *TASK_STAGES,
    )
    assert {*every, *others} == {cls.NAME for cls in meshc.PASSES}
    assert [p.NAME for p in serving_passes(2, grouped=True)] == list(SERVING_STAGES)
    assert len(every) == len(set(every))
    assert [p.NAME for p in pipeline_to_kernels()] == [*STAGES["graph"], FUSING]
    assert [p.NAME for p in pipeline_to("tile")] == every
    chosen = pipeline_to("mesh", {"shift-kv-cache": "shift-kv-cache{policy=cyclic}"})
    assert meshc.ShiftKvCache(policy="cyclic") in chosen


def test_stages_provide_what_they_require():
    held = set()
    for step in pipeline_to("tile"):
        assert held >= step.REQUIRES, step
        held = (held - step.INVALIDATES) | step.ESTABLISHES


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("text", "code", "column"),
    [
        ("canonicalise", "unknown-pass", 1),
        ("canonicalize,,partition", "bad-pipeline", 14),
        ("partition{grid}", "bad-pipeline", 15),
        ("partition{grid=4x4", "bad-pipeline", 19),
        ("partition;canonicalize", "bad-pipeline", 10),
        ("partition{grid=[4,4]}", "bad-pass-option", 1),
        ("canonicalize,partition{gird=4x4}", "bad-pass-option", 14),
        ("select-collective{k=two}", "bad-pass-option", 1),
        ('partition{grid="4x4}', "bad-pipeline", 16),
        ("{" * 50_000, "bad-pipeline", 1),
        ("a," * 100_000, "bad-pipeline", 1),
    ],
)
def test_mistakes(text, code, column):
    with pytest.raises(meshc.MeshcError) as error:
        meshc.parse_pipeline(text)
    (found,) = error.value.diagnostics
    assert found.code == code
    assert found.span is None or found.span.column == column


def test_a_near_name_is_offered():
    with pytest.raises(meshc.MeshcError) as error:
        meshc.parse_pipeline("canonicalise")
    assert error.value.diagnostics[0].help == "did you mean 'canonicalize'?"
