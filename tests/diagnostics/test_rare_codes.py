"""Codes of mistakes that no ordinary program makes, each made to happen once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meshc.backends.python.emit import emit
from meshc.backends.python.host_file import HostFacts
from meshc.interp.mesh import run_mesh
from meshc.interp.tile import TileMachine
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.passes.graph.eliminate_transpose import EliminateTranspose
from meshc.passes.manager import PassManager
from meshc.passes.mesh.partition import Partition
from meshc.sim import cslc
from meshc.sim.program import Program
from meshc.sim.stored_programs import load_program
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source

TILE = """\
module @t level(tile) {
  dims E = 8
  scalars pos = 0..3
  mesh y = 1, x = 2
  buffer %x : f32[4] {role = in}
  buffer %s : f32[4] {role = state}
  buffer %y : f32[4] {role = out}
  channel @c "{ [y, x] -> [y, x - 1] : x >= 1 }"
  port @x in f32[E] : %x {lanes = [i], element = ["i + 4*x"]}
  port @y out f32[E] : %y {lanes = [i], element = ["i + 4*x"]}
  program @decode {
    %sent = tile.send @c, %x {when = "x >= 1"} : token
    %got = tile.recv @c, %y {when = "x = 0"} : token
    tile.wait %sent, %got
  }
}
"""
LANGUAGE_MODEL = HostFacts("t", embedding="embedding", vocab=4, capacity=4)
TENSORS = HostFacts("t")


def tile(*changes: tuple[str, str]) -> Module:
    """The small program with pieces of its text replaced."""
    text = TILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_module(Source("t", text))


def codes(action: Callable[[], object]) -> list[str]:
    with pytest.raises(MeshcError) as error:
        action()
    return [d.code for d in error.value.diagnostics]


def test_programs_that_no_host_can_serve() -> None:
    phases = {"decode": tile(("pos = 0..3", "turn = 0..3"))}
    assert codes(lambda: emit(phases, LANGUAGE_MODEL)) == ["host-scalar"]
    assert codes(lambda: emit({"decode": tile()}, LANGUAGE_MODEL)) == ["host-ports"]
    silent = tile(('  port @y out f32[E] : %y {lanes = [i], element = ["i + 4*x"]}\n', ""))
    assert codes(lambda: emit({"main": silent}, TENSORS)) == ["no-output"]


def test_routes_and_ports_that_depend_on_run_time_values() -> None:
    late = tile(("x - 1] : x >= 1", "x - pos] : x >= 1"))
    assert codes(lambda: emit({"main": late}, TENSORS)) == ["unsupported-route"]
    loaded = tile(("@x in f32[E] : %x", "@x in f32[E] : %s"))
    assert codes(lambda: emit({"main": loaded}, TENSORS)) == ["unsupported-port"]


def test_what_the_tile_interpreter_is_not_given() -> None:
    machine = TileMachine(tile())
    assert codes(lambda: machine.load("z", np.zeros(8))) == ["interp-input"]
    assert codes(lambda: machine.run({"pos": 9})) == ["interp-scalar"]
    other = TileMachine(tile(("f32[4] {role = state}", "f32[5] {role = state}")))
    assert codes(lambda: machine.adopt_state(other)) == ["interp-state"]


def test_what_the_tile_interpreter_cannot_place() -> None:
    machine = TileMachine(tile(("[y, x] -> [y, x - 1]", "[x] -> [x - 1]")))
    machine.load("x", np.zeros(8))
    assert codes(lambda: machine.run({"pos": 0})) == ["interp-route"]
    inside = (
        "    tile.for {var = t, count = 1} {\n"
        '      %lost = tile.send @c, %x {when = "x >= 2"} : token\n    }\n'
    )
    waits = tile(
        ("  program @decode {\n", "  program @decode {\n" + inside),
        ("tile.wait %sent, %got", "tile.wait %sent, %got, %lost"),
    )
    assert codes(lambda: TileMachine(waits)) == ["interp-token"]


MESH = """\
module @m level(mesh) {
  dims L = 4, E = 8
  rows dim = L, capacity = L
  mesh y = 1, x = 2
  func @main(in %x: f32[L, E]<E_x:4>) -> (f32[L, E]<E_x:4>) {
    %y = mesh.rope %x {dim = E, rows = L, style = half} : f32[L, E]<E_x:4>
    mesh.return %y
  }
}
"""


def test_a_pair_of_lanes_on_two_cores() -> None:
    module = parse_module(Source("m", MESH))
    assert codes(lambda: run_mesh(module, {"x": np.zeros((4, 8))}, {})) == ["interp-layout"]


def partitioned(
    body: str, params: str, result: str, dims: str = "L = 1, E = 8, N = 6"
) -> Diagnostics:
    """What partition remarks about a function."""
    text = (
        f"module @g level(graph) {{\n  dims {dims}\n  options dtype = f32, accumulate = f32\n"
        f"  func @main({params}) -> ({result}) {{\n{body}\n  }}\n}}\n"
    )
    report = Diagnostics()
    passes = [EliminateTranspose(), Partition(grid="2x2")]
    PassManager(passes).run(parse_module(Source("g", text)), report)
    return report


def test_products_that_partition_refuses() -> None:
    product = (
        "    %q = graph.silu %y : f32[E, N]\n"
        "    %s = graph.matmul %x, %q {contract = [E]} : f32[L, N]\n    graph.return %s"
    )
    params = "in %x: f32[L, E], in %y: f32[E, N]"
    assert codes(lambda: partitioned(product, params, "f32[L, N]", "L = 4, E = 8, N = 6")) == [
        "unsupported-op"
    ]


def test_a_weight_wanted_in_two_layouts() -> None:
    body = (
        "    %a = graph.matmul %x, %w {contract = [E]} : f32[L, N]\n"
        "    %b = graph.matmul %a, %w {contract = [N]} : f32[L, E]\n"
        "    graph.return %b"
    )
    params = "in %x: f32[L, E], weight %w: f32[E, N]"
    dims = "L = 4, E = 8, N = 6"
    assert codes(lambda: partitioned(body, params, "f32[L, E]", dims)) == ["weight-used-twice"]


def test_a_residual_that_changes_its_axis() -> None:
    body = (
        "    %a = graph.matmul %x, %w {contract = [E]} : f32[L, N]\n"
        "    %b = graph.add %a, %z : f32[L, N]\n    graph.return %b"
    )
    params = "in %x: f32[L, E], weight %w: f32[E, N], in %z: f32[L, N]"
    report = partitioned(body, params, "f32[L, N]")
    assert "relayout" in [m.code for m in report.messages]


def test_a_sum_over_dims_that_lie_elsewhere() -> None:
    body = (
        "    %a = graph.matmul %x, %w {contract = [E]} : f32[L, N, M]\n"
        "    %b = graph.add %a, %z : f32[L, N, M]\n    graph.return %b"
    )
    params = "in %x: f32[L, E], weight %w: f32[E, N, M], in %z: f32[L, N, M]"
    dims = "L = 4, E = 8, N = 6, M = 2"
    assert codes(lambda: partitioned(body, params, "f32[L, N, M]", dims)) == ["unsupported-layout"]


def test_the_csl_compiler_explains_its_arguments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = tmp_path / "layout.csl"
    layout.write_text("layout { @set_rectangle(1, 1); }", encoding="utf-8")
    assert cslc.main([str(layout), "--params=n:many"]) == 1
    assert "error[csl-usage]" in capsys.readouterr().err

    def broken(*_: object) -> Program:
        raise KeyError("made to fail")

    monkeypatch.setattr(cslc, "compile_program", broken)
    assert cslc.main([str(layout), "-o", str(tmp_path / "out")]) == 1
    assert "error[csl-internal]" in capsys.readouterr().err
    assert codes(lambda: load_program(tmp_path)) == ["csl-no-program"]
