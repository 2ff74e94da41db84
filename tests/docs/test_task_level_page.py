"""The program of docs/task-level.md is what the passes make of a small graph, and computes it."""

from __future__ import annotations

import re

from pages import blocks, page

import meshc
from meshc.devices import device
from meshc.interp.check import check_outcomes, random_trace, run_trace
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Order

PAGE = "docs/task-level.md"
PASSES = "expand-tasks{rows=2,tokens=4},place-tasks{blocks=3},meet,fold-scratch"

GRAPH = """module @small level(graph) holds(transpose_free) {
  dims B = 1, L = 1, S = 16, E = 4, H = 1, G = 1, D = 2, V = 6, layers = 3
  scalars pos = 0..15
  rows dim = L, capacity = S
  attention query = H, key = G, lane = D, keys = S
  func @decode(PARAMS) -> (f16[B, L, E], CACHE, CACHE) {
    %x_4, %cache_k_2, %cache_v_2 = graph.repeat %x0, OPERANDS : STACKS (ARGUMENTS) {
      %q, %k, %v = graph.matmul %x, %wq_1, %wk_1, %wv_1 {contract = [E]} : HEADS, KEYS, KEYS
      %keys = graph.append %cache_k_1, %k {dim = S, rows = L} : f16[B, S, G, D]
      %values = graph.append %cache_v_1, %v {dim = S, rows = L} : f16[B, S, G, D]
      %s_2 = graph.matmul %q, %keys {contract = [D], group = [H, G]} : f16[B, L, H, S]
      %s = graph.softmax %s_2 {dim = S, mask = causal, rows = L} : f16[B, L, H, S]
      %a = graph.matmul %s, %values {contract = [S], group = [H, G]} : HEADS
      %o = graph.matmul %a, %wo_1 {contract = [H, D]} : f16[B, L, E]
      %x_2 = graph.add %x, %o : f16[B, L, E]
      graph.yield %x_2, %keys, %values
    }
    graph.return %x_4, %cache_k_2, %cache_v_2
  }
}
"""

WEIGHTS = {"wq": "E, H, D", "wk": "E, G, D", "wv": "E, G, D", "wo": "H, D, E"}
STATES = ("cache_k", "cache_v")


def graph():
    """The graph whose program the page shows."""
    stacks = [f"weight %{name}: f16[layers, {dims}]" for name, dims in WEIGHTS.items()]
    stacks += [f"state %{name}: CACHE" for name in STATES]
    slices = [f"%{name}_1: f16[{dims}]" for name, dims in WEIGHTS.items()]
    slices += [f"%{name}_1: f16[B, S, G, D]" for name in STATES]
    text = GRAPH.replace("PARAMS", ", ".join(["in %x0: f16[B, L, E]", *stacks]))
    text = text.replace("ARGUMENTS", ", ".join(["%x: f16[B, L, E]", *slices]))
    operands = ", ".join(f"%{name}" for name in (*WEIGHTS, *STATES))
    text = text.replace("OPERANDS", f"{operands} {{dim = layers}}")
    text = text.replace("STACKS", "f16[B, L, E], CACHE, CACHE")
    text = text.replace("CACHE", "f16[layers, B, S, G, D]")
    text = text.replace("HEADS", "f16[B, L, H, D]").replace("KEYS", "f16[B, L, G, D]")
    module = meshc.parse(text)
    module.device = device("h200").with_numbers(cores=3)
    return module


def test_the_program_of_the_page():
    (text,) = blocks(PAGE, "meshir")
    module = meshc.PassManager(meshc.parse_pipeline(PASSES)).run(graph())
    trace = random_trace(graph(), 3, 4, first=7)
    wanted = run_trace(graph(), trace)
    session = Session(module, trace.constant, order=Order(1, blocks=True))
    found = [array for given, at in trace.steps for array in session.step(given, at)]
    check_outcomes(graph(), module, wanted, found)
    module.device = None  # the page leaves its lines out
    assert meshc.print_module(module) == text


def test_every_statement_is_in_the_table():
    told = set(re.findall(r"`(?:%\w+ = )?(task\.\w+)", page(PAGE).split("```meshir")[0]))
    classes = {name for name in meshc.ir.core.OP_CLASSES if name.startswith("task.")}
    assert told == classes
