"""Which judge and which target knows which microkernel: the table of docs/tile-level.md is made
from the tables of meanings, and what has no meaning somewhere is refused there in words."""

import re
from pathlib import Path

import pytest

from meshc.analysis.csl.instruction_costs import Costs
from meshc.backends.csl import emit as emit_csl
from meshc.backends.csl.kernels.table import Kernels
from meshc.backends.csl.spelling.expressions import as_named
from meshc.backends.csl.spelling.memory_dsds import Descriptors
from meshc.backends.csl.spelling.names import Names
from meshc.backends.python import HostFacts, emit
from meshc.backends.python.runtime import kernels as runtime
from meshc.devices import device
from meshc.interp import kernels as judge
from meshc.interp.check import run_any
from meshc.ir.kernels import KERNELS
from meshc.ir.parser import parse_module
from meshc.passes.graph.fusing.ffn_block import ACTIVATIONS
from meshc.support.diagnostics import MeshcError
from meshc.support.spans import Source

PAGE = Path(__file__).parents[2] / "docs" / "tile-level.md"
TABLE = re.compile(r"(?<=<!-- kernels -->\n).*?(?=<!-- end of kernels -->)", re.DOTALL)


OF_TASKS = {"likelihood", "draw", "e4m3_rows"}
"""What no programs but those of tasks call."""


def csl_kernels():
    """What the CSL back end emits."""
    names = Names()
    return Kernels(names, Descriptors(names, as_named(), {}), Costs(device("wse2")), 0).known


def meanings():
    """The kernels that the interpreter, the emitted Python, CSL and CUDA know."""
    return {
        "interpreter": set(judge.MICROKERNELS),
        "Python": KERNELS.keys() & vars(runtime).keys(),
        "CSL": set(csl_kernels()),
        "CUDA": {op.NAME.removeprefix("graph.") for op in ACTIVATIONS},
    }


def table():
    """The lines of the page."""
    known = meanings()
    lines = [f"| microkernel | {' | '.join(known)} |", "|---|" + "---|" * len(known)]
    for name, kernel in KERNELS.items():
        marks = [_mark(name, target, names) for target, names in known.items()]
        form = str(kernel).replace("|", "\\|")
        lines.append(f"| `{form}`: {kernel.doc} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _mark(name, target, names):
    if name not in names:
        return "–"
    return "`ffn_block`" if target == "CUDA" else "yes"


def test_the_page_shows_who_knows_what(update_golden):
    text = PAGE.read_text(encoding="utf-8")
    (shown,) = TABLE.findall(text)
    print(table())
    if shown != table() and update_golden:
        PAGE.write_text(TABLE.sub(lambda _: table(), text), encoding="utf-8")
        pytest.fail(f"{PAGE} was rewritten; look at it")
    assert shown == table(), "run this test with --update-golden"


def test_no_table_knows_what_is_not_declared():
    for target, names in meanings().items():
        assert names <= KERNELS.keys(), target


def test_the_judge_knows_all_and_python_what_no_tasks_alone_call():
    known = meanings()
    assert known["interpreter"] == KERNELS.keys()
    assert known["Python"] == KERNELS.keys() - OF_TASKS


@pytest.mark.parametrize("name", sorted(OF_TASKS))
def test_python_refuses_what_tasks_alone_call(name):
    found = refusal(lambda: emit({"main": module(CALLS[name])}, HostFacts("m")))
    assert found.code == "python-kernel"
    assert f"'{name}'" in found.message


MODULE = """module @m level(tile) {{
  dims E = 4
  mesh y = 1, x = 1
  buffer %a : f32[4] {{role = out}}
  buffer %b : f32[4]
  buffer %state : i32[2]
  buffer %ring : f32[2, 4]
  buffer %codes : u4[4, 1]
  buffer %words : i32[1, 4]
  buffer %columns : f32[4, 1]
  port @a out f32[E] : %a {{lanes = [i], element = ["i"]}}
  program @main {{
    {call}
  }}
}}
"""


CALLS = {
    "clamp": "tile.clamp %a, %b {least = -1.0, most = 1.0}",
    "dequantise": "tile.dequantise %columns, %codes, %b as [4, 1] {group = 1, zero = 8, "
    "lifted = false}",
    "e4m3_rows": "tile.e4m3_rows %a, %b",
    "exp": "tile.exp %a, %b",
    "larger": "tile.larger %a, %a, %b",
    "mask_causal": "tile.mask_causal %ring {query = 0, query_step = 1, key = 0, key_step = 1, "
    "limit = 9}",
    "mask_window": "tile.mask_window %ring {window = 1, query = 0, query_step = 1, key = 0, "
    "key_step = 1, limit = 9}",
    "mask_slots": "tile.mask_slots %ring[:, 0 +: 2], %state",
    "quick_gelu": "tile.quick_gelu %a, %b",
    "ring_drop": "tile.ring_drop %state {capacity = 2}",
    "ring_grow": "tile.ring_grow %state",
    "ring_oldest": "tile.ring_oldest %a, %ring, %state",
    "ring_push": "tile.ring_push %ring, %a, %state",
    "ring_set": "tile.ring_set %state {count = 0}",
    "rope": "tile.rope %ring, %ring, %b[0 +: 2] {position = 0, step = 1}",
    "select_lanes": "tile.select_lanes %a, %b {shift = 1}",
    "sigmoid": "tile.sigmoid %a, %b",
    "top_k": "tile.top_k %a, %b {count = 1, groups = 1, kept_groups = 1, group_top = 1, "
    "normalise = false, biased = false}",
    "likelihood": "tile.likelihood %columns as [1, 4], %b as [1, 4], %a[0 +: 1], %ring[0 +: 1]",
    "draw": "tile.draw %a[0 +: 1], %b[0 +: 1], %ring[0 +: 1], %ring[1 +: 1], %b as [1, 4], %words",
}
"""A call of each of these kernels on what fits."""


def module(call):
    text = MODULE.format(call=call)
    found = parse_module(Source("m.meshir", text))
    found.device = device("wse2")
    return found


def refusal(run):
    with pytest.raises(MeshcError) as caught:
        run()
    return caught.value.diagnostics[0]


@pytest.mark.parametrize("name", sorted(KERNELS.keys() - set(csl_kernels())))
def test_csl_refuses_what_it_does_not_emit(name):
    """Each of them, called on what fits."""
    found = refusal(lambda: emit_csl({"main": module(CALLS[name])}))
    assert found.code == "csl-kernel"
    assert f"'{name}'" in found.message
    assert found.span is not None


def test_the_interpreter_refuses_what_it_does_not_know(monkeypatch):
    monkeypatch.delitem(judge.MICROKERNELS, "silu")
    found = refusal(lambda: run_any(module("tile.silu %a, %b"), {}, {}))
    assert found.code == "invalid-ir"
    assert "no meaning of tile.silu" in found.message


def test_python_refuses_what_it_does_not_know(monkeypatch):
    monkeypatch.delattr(runtime, "silu")
    found = refusal(lambda: emit({"main": module("tile.silu %a, %b")}, HostFacts("m")))
    assert found.code == "python-kernel"
    assert "'silu'" in found.message and "silu" not in found.help.split(", ")
