"""The table of families and targets (``family_outcomes.py``), held against recorded checkpoints,
and for CUDA also against configurations of the sizes that kernels of clusters take."""

from __future__ import annotations

from pathlib import Path
from shutil import copytree

import pytest
from drawn_families import DRAWN, drawn
from family_cells import DATA, OPTIONS, Recorded, check, refused, write_config
from family_outcomes import COLUMNS, EQUAL, TABLE, as_markdown
from reduced import only

import meshc
from meshc.frontend.families import family_named, family_names
from meshc.support.diagnostics import MeshcError

pytestmark = pytest.mark.models

ON_MESHES = [column for column in COLUMNS if not column.startswith("cuda")]
IN_CI = {
    ("mistral", "window", "python chunks"),
    ("gpt_oss", "window", "python steps"),
    ("starcoder2", "window", "python steps"),
    ("llama", "", "csl steps"),
    ("gemma2", "window", "csl steps"),
    ("phi3", "long context", "csl chunks"),
    ("phi3", "long context", "python chunks"),
    ("starcoder2", "window", "cuda"),
    ("gpt2", "", "cuda"),
    ("gpt_neox", "", "cuda"),
    ("gemma2", "window", "cuda chunks"),
}
"""Cells that CI runs besides those of kernels of clusters: cheap ones of each kind. Whole prompts
of all these checkpoints are those of ``tests/e2e/test_families.py`` and its neighbours."""
FURTHER = (
    "tiny_families/cohere2-3h3-f16",
    "tiny_families/cohere2-4h1-pairs-bf16",
    "tiny_families/nemotron-4h1-biased-bf16",
    "tiny_families/nemotron-5h5-quarter-f16",
    "tiny_families/glm4-4h1-plain-bf16",
    "tiny_families/glm4-3h3-whole-f16",
    "tiny_families/exaone4-5h1-llama3-f16",
    "tiny_families/olmo-6h2",
    "tiny_families/olmo-5h1-biased",
    "tiny_families/falcon3-6h2",
    "tiny_families/falcon3-4h4-bf16",
    "tiny_families/falcon3-3h1-f16",
    "tiny_experts/granitemoe-4h1-6x3-tied-bf16",
    "tiny_experts/granitemoe-3h3-4x1-biased-f16",
)
"""More recorded checkpoints of families that came last: three of each with those of the table."""
OF_CUDA = {"llama": "tiny_cuda/llama-4h2", "deepseek_v2": "tiny_cuda/deepseek-4h"}
"""Recorded checkpoints of sizes that kernels of clusters take."""


def cells() -> list[object]:
    """All cells of recorded checkpoints on meshes, and those for CUDA but those of gemma and of
    mixtures of experts, whose recorded answers are of gains, or of weights and so of gates, that
    are not rounded: these alone move their logits by more than the bound. Mixtures with rounded
    weights are those of ``tests/e2e/test_task_steps_experts.py``. Their sizes are none of kernels
    of clusters, so refusals have other words."""
    found = []
    for (family, case), row in TABLE.items():
        routed = any(kind in row.example for kind in ("experts", "gpt_oss"))
        steps = row.outcomes["cuda"] == EQUAL and family != "gemma" and not routed
        for column in (
            [*ON_MESHES, *(["cuda", "cuda chunks"] if steps else [])] if row.example else ()
        ):
            marks = [] if (family, case, column) in IN_CI else [pytest.mark.slow]
            name = "-".join(filter(None, (family, case, column))).replace(" ", "_")
            found.append(pytest.param(family, case, column, id=name, marks=marks))
    return found


def test_every_family_is_in_the_table() -> None:
    kinds = {kind for name in family_names() for kind in family_named(name).tables}
    assert {family for family, _ in TABLE} == kinds
    assert TABLE.keys() == DRAWN.keys()
    assert all(row.outcomes.keys() == COLUMNS.keys() for row in TABLE.values())
    assert COLUMNS.keys() == OPTIONS.keys()


@pytest.mark.every_case
@pytest.mark.parametrize(("family", "case", "column"), cells())
def test_a_recorded_checkpoint_gives_what_the_table_says(
    family: str, case: str, column: str, tmp_path: Path
) -> None:
    row = TABLE[family, case]
    folder = copytree(DATA / row.example, tmp_path / "model")
    check(folder, column, row.outcomes[column], Recorded(folder))


@pytest.mark.slow
@pytest.mark.parametrize("column", ON_MESHES)
@pytest.mark.parametrize("name", FURTHER)
def test_further_checkpoints_give_what_transformers_gives(
    name: str, column: str, tmp_path: Path
) -> None:
    folder = copytree(DATA / name, tmp_path / "model")
    check(folder, column, EQUAL, Recorded(folder))


@pytest.mark.parametrize("family", only(OF_CUDA, "llama"))
def test_kernels_give_what_transformers_gives(family: str) -> None:
    folder = DATA / OF_CUDA[family]
    check(folder, "cuda", TABLE[family, ""].outcomes["cuda"], Recorded(folder, rounds=True))


@pytest.mark.parametrize(("family", "case"), TABLE)
def test_cuda_takes_or_refuses_the_family_for_what_it_computes(
    family: str, case: str, tmp_path: Path
) -> None:
    """At sizes that kernels of clusters take. ``test_drawn_families.py`` has the logits."""
    folder = write_config(tmp_path, family, drawn(family, case, 0, wide=True))
    for column in ("cuda", "cuda chunks"):
        wanted = TABLE[family, case].outcomes[column]
        try:
            found = meshc.compile(str(folder), seq=40, **OPTIONS[column])
        except MeshcError as refusal:
            refused(refusal, wanted)
        else:
            assert wanted == EQUAL and found.files


def test_the_page_shows_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
    assert as_markdown() in page, as_markdown()
    for column, words in COLUMNS.items():
        assert f"| {column} | {words} |\n" in page
