"""Rows that go to the cores of their experts and come back as sums: mesh level, tile level and the
emitted Python, against NumPy; what experts without rows have is not read."""

import re

import numpy as np
import pytest
from dispatch_programs import ROUTINGS, Routing, expected, product_tensors, products, routing
from hypothesis import given, settings
from hypothesis import strategies as st

from meshc.backends.python import HostFacts, emit, load_program
from meshc.devices import device
from meshc.interp.mesh import run_mesh
from meshc.interp.tile import TileMachine
from meshc.ir.clone import clone_module
from meshc.ir.parser import parse_module
from meshc.ir.verifier import verify_module
from meshc.passes.manager import PassManager
from meshc.passes.registry import parse_pipeline
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.spans import Source
from meshc.verify import check_claims

PASSES = (
    "place-interleave,select-collective,expand-programs,allocate-routes,schedule-tasks,plan-memory"
)
MESHES = ((1, 1), (1, 3), (4, 1), (2, 2), (3, 4), (1, 7))
WAYS = ("multicast", "ring", "gather", "auto")


def parse(text):
    module = parse_module(Source("dispatch.meshir", text))
    module.device = device("ideal")
    module.holds = frozenset({"padding_safe", "partitioned"})
    verify_module(module)
    check_claims(module)
    return module


def lowered(module, way="auto"):
    passes = parse_pipeline(f"select-dispatch{{algo={way}}},{PASSES}")
    found = PassManager(passes).run(clone_module(module))
    check_claims(found)
    return found


def all_levels(module, way, tensors, folder):
    """The only result of each level."""
    yield run_mesh(clone_module(module), tensors)[0]
    tile = lowered(module, way)
    for executor in (("early", "round-robin"), ("late", "random(1)")):
        machine = TileMachine(tile, *executor)
        for name, tensor in tensors.items():
            machine.load(name, tensor)
        yield next(iter(machine.run().values()))
    for path, text in emit({"main": tile}, HostFacts("test")).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    inputs = {name: tensors[name] for name in tensors if name not in ("gain", "weights")}
    weights = {name: tensors[name] for name in tensors if name in ("gain", "weights")}
    yield next(iter(load_program(folder).load(weights).run(inputs).values()))


@st.composite
def cases(draw):
    (rows, columns), axis = draw(st.sampled_from(MESHES)), draw(st.sampled_from("xy"))
    tokens, experts = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    over = draw(st.sampled_from(["T", "E", ""]))
    back = draw(st.sampled_from(["reduce_scatter", "all_reduce", "reduce"]))
    width = draw(st.integers(1, 6))
    case = Routing(rows, columns, axis, tokens, width, experts, over=over, back=back)
    top, seed = draw(st.integers(1, experts)), draw(st.integers(0, 99))
    return case, routing(draw(st.sampled_from(ROUTINGS)), tokens, experts, top, seed)


@given(drawn=cases(), way=st.sampled_from(WAYS))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_every_level_sends_and_adds_up(drawn, way, tmp_path_factory):
    case, chosen = drawn
    tensors = case.tensors(chosen, 5)
    wanted, bound = expected(tensors, "f32")
    for found in all_levels(parse(case.text), way, tensors, tmp_path_factory.mktemp("levels")):
        assert np.all(np.abs(found - wanted) <= bound)


@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("kind", ROUTINGS)
def test_weights_of_experts_without_rows_are_not_read(kind, columns, tmp_path):
    """They are not a number."""
    tensors, wanted = product_tensors(routing(kind, 5, 6, 2, 7))
    for found in all_levels(parse(products(columns)), "auto", tensors, tmp_path):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


REFUSED = [
    ("{dim = X, axis = x}", "{dim = E, axis = x}", "takes [rows.., lanes..] and gates [rows.., E]"),
    ("f32[T, X, E]<X_x:2>", "f32[X, T, E]<X_x:2>", "gives [rows.., X, lanes..]"),
    ("f32[T, X]<T_x:2>", "f32[T, X]<>", "each core has the gates of its own rows"),
    ("f32[T, X]<X_x:2>\n", "f32[T, X]<T_x:2>\n", "gives experts X in equal parts over x"),
    ("f32[T, E]<+x>", "f32[T, E]<>", "is to be completed over x"),
]


@pytest.mark.parametrize(("old", "new", "words"), REFUSED)
def test_what_no_dispatch_is(old, new, words):
    text = Routing(1, 4, "x", 8, 3, 7).text
    assert old in text
    with pytest.raises(MeshcError) as caught:
        parse(text.replace(old, new, 1))
    assert any(words in d.message for d in caught.value.diagnostics)


def test_the_fewest_predicted_cycles_are_taken():
    """A remark says over what."""
    report = Diagnostics()
    module = parse(Routing(1, 8, "x", 16, 8, 8).text)
    module.device = device("wse3")
    passes = parse_pipeline("select-dispatch")
    found = PassManager(passes).run(module, report)
    (remark,) = (d for d in report.messages if d.code == "dispatch")
    taken = next(op.algo for op in found.walk() if op.NAME == "mesh.dispatch")
    cycles = {way: int(number) for way, number in re.findall(r"(\w+),? (\d+)", remark.message)}
    assert {*WAYS[:3]} <= cycles.keys() and taken == min(WAYS[:3], key=cycles.__getitem__)


def test_rows_of_a_prompt_do_not_travel():
    """How many there are is known when a program runs."""
    text = Routing(4, 1, "y", 8, 3, 8).text
    module = parse(text.replace("options", "rows dim = T, capacity = T\n  options", 1))
    with pytest.raises(MeshcError) as caught:
        lowered(module, "ring")
    assert "of which the run says how many there are" in caught.value.diagnostics[0].message
