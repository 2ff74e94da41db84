"""The programs of docs/mesh-level.md run, in order, and its forms are those that there are."""

import re
import shutil

import pytest
from offered import offer
from pages import ROOT, blocks, page

from meshc.driver import CompileRequest, graph_module, load_any
from meshc.ir.ops import mesh as ops
from meshc.passes.manager import PassManager
from meshc.passes.mesh.form_search import Search
from meshc.passes.mesh.partition import Partition
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics

PAGE = "docs/mesh-level.md"
PACKAGE = ROOT / "examples" / "own_form"


def test_programs_run(monkeypatch, tmp_path):
    """In a folder that has what the page names: examples and the files of devices."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shutil.copytree(ROOT / "meshc" / "devices" / "data", tmp_path / "meshc" / "devices" / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(PACKAGE))
    offer(monkeypatch, "meshc.forms", ("gathered", "own_form.gathered:GATHERED"))
    names = {}
    for block in blocks(PAGE, "python"):
        exec(compile(block, PAGE, "exec"), names)
    assert names["pinned"].level == names["own"].level == "mesh"
    assert (PACKAGE / "own_form" / "gathered.py").read_text() in blocks(PAGE, "python")


def test_every_form_is_listed():
    """Names of forms in the sources stand in the table, with y and x for the axes."""
    folder = ROOT / "meshc" / "passes" / "mesh" / "forms"
    texts = [path.read_text() for path in sorted(folder.glob("*.py"))]
    found = {name for text in texts for name in re.findall(r'(?:Form|only)\(f?"(\w+)', text)}
    listed = set(re.findall(r"`(\w+?)(?:_[yx])?`", page(PAGE)))
    assert {name.rstrip("_") for name in found} - {
        "cache",
        "local",
        "joint",
        "as_entered",
    } <= listed


ROW = re.compile(r"^\| (\w+) (\S+) (f\d+) (\d+) \| ([\d, ]+) \| ([\d, ]+) \| `(\w+)` \|$", re.M)


def cheapest(sharing, reduced):
    """Cycles of a reduction by the best algorithm, whatever channels it takes."""
    return min(option.way.cycles for option in sharing.options(reduced))


@pytest.mark.parametrize("row", ROW.findall(page(PAGE)), ids=" ".join)
def test_reductions_of_a_layer_are_those_of_the_table(row):
    """Of Llama-3-8B with either form of softmax, and which of them the search takes."""
    device, mesh, dtype, tokens, *counted, chosen = row
    request = CompileRequest(device=device, mesh=mesh, seq=int(tokens), dtype=dtype)
    module = graph_module(load_any("llama-3-8b", Diagnostics()), "decode", request)
    problem = Partition(grid=mesh).problem(PassManager(pipeline_to("graph")).run(module))
    best, *_ = Search(problem).run()
    assert dict(best.chosen)["s"] == chosen
    costs = problem.costs
    for form, words in zip(("deferred", "merged"), counted, strict=True):
        way, *_ = Search(problem, {"s": form}).run()
        (loop,) = (op for op in way.block.ops if op.regions)
        found = [op for op in loop.regions[0].ops if isinstance(op, ops.AllReduce)]
        sent = sum(costs.words(op, way.type_of) for op in found)
        cycles = sum(cheapest(costs.sharing, costs.reduced(op, way.type_of)) for op in found)
        assert f"{len(found)}, {sent:,}, {cycles:,.0f}" == words


def test_the_table_of_reductions_is_found():
    assert len(ROW.findall(page(PAGE))) == 5
