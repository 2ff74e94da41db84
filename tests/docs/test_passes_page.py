"""docs/passes.md says what the code says."""

import re
from pathlib import Path

import meshc
from meshc.pipelines import (
    CHOOSING,
    CLUSTERING,
    CODING,
    CUTTING,
    KEEPING,
    NODE_STAGES,
    RANK_PASSES,
    REQUESTS_BEHIND,
    STAGES,
    STREAMING,
    TASK_STAGES,
    resource_passes,
    serving_passes,
)
from meshc.verify import FACTS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "passes.md").read_text(encoding="utf-8")


def rows(heading):
    """Cells of the table under ``heading``, without its head."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_table_of_passes():
    classes = {cls.NAME: cls for cls in meshc.PASSES}
    order = [name for stage in STAGES.values() for name in stage]
    order += ["pass for requests", *REQUESTS_BEHIND.values()]
    order += ["pass for quantised weights", KEEPING]
    order += ["pass for several GPUs", *NODE_STAGES]
    order += ["pass for serving", *(one.NAME for one in serving_passes(1, True))]
    order += ["pass for choices", CHOOSING]
    order += ["pass for ranks", *RANK_PASSES]
    order += ["pass for caches of GPUs", CODING]
    order += ["pass for weights that GPUs decode", STREAMING]
    order += ["pass for tasks", *TASK_STAGES]
    order += ["pass for several kernels", CUTTING]
    order += ["pass for clusters of tasks", CLUSTERING]
    order += ["pass for CSL", *(one.NAME for one in resource_passes())]
    assert [row[0] for row in rows("Passes")] == order
    for name, levels, requires, establishes in rows("Passes"):
        if name.startswith("pass for "):  # the head of its table
            continue
        cls = classes[name]
        assert levels.split()[0] in cls.LEVELS
        assert requires == ", ".join(sorted(cls.REQUIRES))
        assert establishes == ", ".join(sorted(cls.ESTABLISHES))


def test_table_of_facts():
    found = [[f.name, ", ".join(f.levels), f.meaning] for f in FACTS.values()]
    assert rows("Facts") == found


def test_every_page_is_listed():
    listed = set(re.findall(r"\]\((\S+?\.md)\)", (DOCS / "README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in DOCS.glob("*.md")} - {"README.md"}
