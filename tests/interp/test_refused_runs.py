"""What the interpreters refuse: inputs, scalars, states, routes, tokens, layouts."""

import numpy as np
import pytest
from interp_tile_texts import module_of, tile_module

from meshc.interp.check import Session
from meshc.interp.graph import run_graph
from meshc.interp.mesh import run_mesh
from meshc.interp.tile import TileMachine
from meshc.support.diagnostics import MeshcError

EMBED = """module @m level(graph) {
  dims L = 2, E = 3, V = 4
  scalars pos = 0..3
  func @f(in %ids: i32[L], weight %table: f32[V, E]) -> (f32[L, E]) {
    %x = graph.embed %ids, %table {dim = V} : f32[L, E]
    graph.return %x
  }
}
"""
TOKENS = """module @m level(graph) {
  dims B = 2, L = 1, S = 3, E = 2, R = 2
  scalars pos = -1..7, owner = 0..2
  func @f(in %x: f32[B, L, E], state %c: f32[R, S, E]) -> (f32[B, S, E], f32[R, S, E]) {
    %g = graph.append_tokens %c, %x {dim = S, rows = L, requests = R, tokens = B} : f32[R, S, E]
    %o = graph.token_caches %g {requests = R, tokens = B} : f32[B, S, E]
    graph.return %o, %g
  }
}
"""
KEPT = "buffer %s : f32[2] {role = state}\n"
PAIRS = """module @m level(mesh) {
  dims L = 1, D = 6
  mesh y = 1, x = 2
  func @f(in %x: f32[L, D]<D_x:3>) -> (f32[L, D]<D_x:3>) {
    %y = mesh.rope %x {dim = D, rows = L, style = interleaved} : f32[L, D]<D_x:3>
    mesh.return %y
  }
}
"""


def code(call, *args, **kwargs):
    with pytest.raises(MeshcError) as error:
        call(*args, **kwargs)
    return error.value.diagnostics[0].code


def test_inputs_and_scalars():
    module, table = module_of(EMBED), np.zeros((4, 3))
    at = {"pos": 0}
    assert code(run_graph, module, {"table": table}, at) == "interp-input"
    assert code(run_graph, module, {"ids": np.array([0, 4]), "table": table}, at) == "interp-input"
    given = {"ids": np.array([0, 3]), "table": table}
    assert code(run_graph, module, given, {}) == "interp-scalar"
    assert code(run_graph, module, given, {"pos": 4}) == "interp-scalar"
    assert run_graph(module, given, at)[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("owner", "pos", "fits"),
    [
        ((0, 1), (2, 2), True),
        ((0, 1), (2, 3), False),
        ((0, 2), (0, 0), False),
        ((0, 2), (0, -1), False),
        ((1, 1), (0, -1), True),
    ],
)
def test_tokens_have_a_place_in_a_cache(owner, pos, fits):
    module, given = module_of(TOKENS), {"x": np.ones((2, 1, 2))}
    at = {"pos": pos, "owner": owner}
    if not fits:
        assert code(run_graph, module, given, at) == "interp-shape"
        return
    own, grown = run_graph(module, given, at)
    assert grown.sum() == 2 * sum(p >= 0 for p in pos)
    assert np.array_equal(own, grown[list(owner)])


def test_a_tile_program_wants_its_ports():
    header = "dims E = 2\nbuffer %x : f32[2] {role = in}\nport @x in f32[E] : %x {lanes = [i], "
    machine = TileMachine(tile_module(1, 1, "", header + 'element = ["i"]}'))
    assert code(machine.load, "y", np.zeros(2)) == "interp-input"
    assert code(machine.load, "x", np.zeros(3)) == "interp-input"
    assert code(machine.run) == "interp-input"


def test_states_must_be_alike():
    one, other = (
        TileMachine(tile_module(1, 1, "", KEPT.replace("[2]", n))) for n in ("[2]", "[3]")
    )
    assert code(one.adopt_state, other) == "interp-state"
    graph = EMBED.replace("weight %table", "state %table")
    session, empty = Session(module_of(graph), {}), Session(module_of(EMBED), {})
    assert code(session.adopt_state, empty) == "interp-state"


def test_a_route_must_map_cores():
    body = "%t = tile.send @c, %a : token\n"
    header = 'buffer %a : f32[1]\nchannel @c "{ [x] -> [x - 1] : x >= 1 }"'
    machine = TileMachine(tile_module(1, 2, body, header))
    assert code(machine.run) == "interp-route"


def test_a_wait_names_transfers_of_its_block():
    inside = "%t = tile.send @c, %a : token\n"
    body = f"tile.for {{var = i, count = 2}} {{\n {inside} }}\n tile.wait %t\n"
    header = 'buffer %a : f32[1]\nchannel @c "{ [y, x] -> [y, x - 1] : x >= 1 }"'
    assert code(TileMachine, tile_module(1, 2, body, header)) == "interp-token"


def test_a_pair_must_lie_on_one_core():
    module = module_of(PAIRS)
    assert code(run_mesh, module, {"x": np.zeros((1, 6))}) == "interp-layout"
