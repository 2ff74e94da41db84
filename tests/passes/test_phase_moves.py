"""Weights that move between the phases of a model: held against ports, and run core by core."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.interp.tile import TileMachine
from meshc.ir.module import Program
from meshc.ir.phases import PHASE, TRANSITION, phases_of
from meshc.ir.verifier import verify_module
from meshc.passes.tile.phases.joining import joined, weights_of_both
from meshc.support.diagnostics import Diagnostics
from meshc.verify import check_fact

MODEL = """\
use blocks

model drawn(E={E}, H={H}, G={H}, D={D}, F={F}, V=5, layers={layers}, eps=1e-5, theta=100.0) {{
  weights f32  accumulate f32

  param embedding[V, E], final_norm[E], lm_head[E, V]

  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat layers {{
      param attn_norm[E], wq[E, H, D], wk[E, H, D], wv[E, H, D], wo[H, D, E]
      param ffn_norm[E], w_gate[E, F], w_up[E, F], w_down[F, E]
      x = llama_attention(x, attn_norm, wq, wk, wv, wo, eps, theta)
      x = llama_mlp(x, ffn_norm, w_gate, w_up, w_down, eps)
    }}
    return x when prefill
    return rms_norm(x, final_norm, eps) @ lm_head
  }}
}}
"""


def phases(folder, mesh, sizes, algo=()):
    """The tile programs of a prompt and of a step."""
    path = folder / "drawn.mesh"
    path.write_text(MODEL.format(**sizes))
    request = CompileRequest(compile_to="tile", device="wse3", mesh=mesh, seq=4, algo=algo)
    modules = compile_loaded(load_any(str(path), Diagnostics()), request).modules
    return modules["prefill"], modules["decode"]


def transition_of(prefill, decode):
    """The program that only moves weights: it is given them as prefill has them, and gives them as
    the ports of decode say."""
    weights = [weight for weight in weights_of_both(prefill, decode) if weight.moves]
    module = joined(prefill, decode, weights).module
    verify_module(module)
    for fact in ("guards_cover", "channels_matched", "deadlock_free"):
        check_fact(module, fact)
    (transition,) = (p for p in phases_of(module) if p.name == TRANSITION)
    moved = {name for weight in weights for name in weight.tensors}
    given = [port for port in module.ports if port.name in moved]
    place = {port.name: port for port in given}
    wanted = [port for port in decode.ports if port.name in moved]
    module.ports = [*given, *(_as_result(port, place[port.name]) for port in wanted)]
    used = {port.buffer for port in given}
    module.buffers = [b for b in module.buffers if b.value in used or b.value.name == "moving"]
    module.constants = {}
    module.programs = [Program("main", transition.block.regions[0])]
    return module, sorted(moved)


def _as_result(port, given):
    """The port of decode as a result of the program, in the buffer of prefill, which may have one
    dim of a single chunk besides."""
    lanes = list(port.lanes)
    if len(lanes) < len(given.lanes):
        lanes.insert(len(lanes) - 2, "chunk")
    return replace(
        port, name=f"{port.name}.moved", direction="out", buffer=given.buffer, lanes=tuple(lanes)
    )


def check_moves(folder, mesh, sizes, algo=()):
    """Every weight that moves comes to be where decode wants it, all of it."""
    module, moved = transition_of(*phases(folder, mesh, sizes, algo))
    machine = TileMachine(module, "late", "round-robin")
    arrays = {}
    for number, name in enumerate(moved):
        shape = next(p for p in module.ports if p.name == name).tensor.shape(module.dims)
        arrays[name] = np.random.default_rng(number).standard_normal(shape).astype(np.float32)
        machine.load(name, arrays[name])
    found = machine.run({name: low for name, (low, _) in module.scalars.items()} | {PHASE: 2})
    assert sorted(found) == [f"{name}.moved" for name in moved]
    for name in moved:
        np.testing.assert_array_equal(found[f"{name}.moved"], arrays[name])
    return moved


def test_all_weights_move_on_a_square_mesh(tmp_path):
    """Sizes that do not divide, so that blocks are padded."""
    sizes = {"E": 5, "H": 3, "D": 2, "F": 7, "layers": 2}
    moved = check_moves(tmp_path, "3x3", sizes, ("gemm=cyclic_shift",))
    assert {"wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down", "attn_norm"} <= {*moved}


def test_weights_of_gathered_products_lie_as_steps_want_them(tmp_path):
    """Those that a step multiplies along the same axes are in one place for both phases."""
    sizes = {"E": 5, "H": 3, "D": 2, "F": 7, "layers": 2}
    weights = weights_of_both(*phases(tmp_path, "3x3", sizes, ("gemm=allgather",)))
    alike = {name for one in weights if one.moves == () for name in one.tensors}
    assert {"wq", "wk", "wv", "w_gate", "w_up"} <= alike


def test_blocks_that_are_cut_differently_do_not_move(tmp_path):
    """On a mesh that is not square no moves are known, and no program claims there are."""
    prefill, decode = phases(tmp_path, "2x3", {"E": 6, "H": 2, "D": 2, "F": 6, "layers": 1})
    weights = {w.tensors: w.moves for w in weights_of_both(prefill, decode)}
    assert weights[("wo",)] is None and weights[("w_down",)] is None


def test_a_chain_goes_on_the_ring_of_its_line_not_from_region_to_region(tmp_path):
    """In a column of two cores, where as many messages go between the regions as on the ring."""
    sizes = {"E": 4, "H": 2, "D": 2, "F": 4, "layers": 2}
    module = joined(*phases(tmp_path, "r=2,y=2,x=1", sizes)).module
    check_fact(module, "channels_matched")
    assert {channel.name for channel in module.channels} == {"edge_x", "ring_y", "cast_y"}


@pytest.mark.slow
def test_another_placement_of_one_lane_is_seen(tmp_path):
    """Moves are not taken for a port that has two lanes of a weight the other way round."""
    prefill, decode = phases(tmp_path, "2x2", {"E": 4, "H": 2, "D": 2, "F": 4, "layers": 1})
    (port,) = (p for p in decode.ports if p.name == "w_down")
    row, column = port.element[-2:]
    other = replace(port, element=(*port.element[:-2], 3 - row, column))
    decode.ports = [other if p is port else p for p in decode.ports]
    weights = {w.tensors: w.moves for w in weights_of_both(prefill, decode)}
    assert weights[("w_down",)] is None
    assert len(weights[("wo",)]) == 2


@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.integers(2, 5),
    st.fixed_dictionaries({
        "E": st.integers(2, 17),
        "H": st.integers(1, 5),
        "D": st.sampled_from([2, 4, 6]),
        "F": st.integers(2, 17),
        "layers": st.integers(1, 3),
    }),
    st.sampled_from([(), ("gemm=cannon",), ("gemm=allgather",)]),
)  # fmt: skip
def test_drawn_weights_move(tmp_path_factory, side, sizes, algo):
    check_moves(tmp_path_factory.mktemp("drawn"), f"{side}x{side}", sizes, algo)
