"""Programs of tasks of several ranks, all of which are interpreted at once, compute what the graph
of the whole model does; edits of what they give each other and of where they meet are noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import meshc
from meshc.interp.check import random_trace, run_trace
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Order
from meshc.interp.task_ranks import TaskNode
from meshc.interp.tasks import TaskMachine
from meshc.ir.affine import Expr
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.ops import task
from meshc.ir.ranks import RANK
from meshc.ir.verifier import verify_module
from meshc.ir.views import Point, View, Whole
from meshc.support.diagnostics import MeshcError
from meshc.verify import check_claims

MODEL = Path(__file__).parents[1] / "data" / "tiny_cuda" / "llama-4h2"
STEPS, BOUND = 3, 2e-3
BY_BLOCKS = [Order(seed, blocks=True) for seed in range(3)]


def graph(model: Path = MODEL) -> Module:
    given = {"phase": "decode", "seq": 8, "device": "h200", "batch": 2}
    return meshc.compile(str(model), dtype="f32", compile_to="graph", **given).modules["decode"]


def program(ranks: int = 2, kind: str = "counter", model: Path = MODEL) -> Module:
    deal = f"tensor-parallel{{ranks={ranks},multiple=8,keep=[V]}}"
    passes = (
        f"{deal},expand-tasks{{tokens=4}},place-tasks{{blocks=3}},meet{{kind={kind}}},fold-scratch"
    )
    return meshc.PassManager(meshc.parse_pipeline(passes)).run(graph(model))


def drawn(model: Path = MODEL) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    module = graph(model)
    return {
        p.value.name: rng.standard_normal(p.value.type.shape(module.dims)) / 4
        for p in module.function.params
        if p.role == "weight"
    }


WEIGHTS = drawn()


def rows(step: int) -> dict[str, np.ndarray]:
    return {"tokens": np.array([[3 + step], [7 * step + 1]])}


def wanted(model: Path, weights: dict[str, np.ndarray]) -> list[np.ndarray]:
    whole = Session(graph(model), weights)
    return [whole.step(rows(n), {"pos": [n, n]})[0] for n in range(STEPS)]


WANTED = wanted(MODEL, WEIGHTS)


def close(
    module: Module,
    order: Order | None,
    weights: dict[str, np.ndarray] = WEIGHTS,
    wanted: list[np.ndarray] = WANTED,
) -> bool:
    """Whether steps give the logits of the graph, of which left sides of products are rounded."""
    table = next(name for name in weights if name.startswith("embed"))
    node = TaskNode(module, weights, order)
    (given,) = [p.name for p in module.ports if p.buffer in _roles(module, "in")]
    for n, logits in enumerate(wanted):
        node.load({given: weights[table][rows(n)["tokens"]]})
        (found,) = node.run({"pos": (n, n)}).values()
        if not np.abs(found - logits).max() <= BOUND * np.abs(logits).max():
            return False
    return True


def computes(module: Module, order: Order | None) -> bool:
    """Whether tasks compute what they should, from memory that has been given."""
    try:
        return close(module, order)
    except MeshcError as error:
        assert error.diagnostics[0].code == "interp-uninitialised"
        return False


def _roles(module: Module, role: str) -> list[object]:
    return [b.value for b in module.buffers if b.role == role]


@pytest.mark.parametrize("kind", ["counter", "tags"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_compute_what_the_whole_graph_does(ranks, kind):
    """In the order of the text, in random ones that needs allow, and block by block."""
    module = program(ranks, kind)
    early = [Order(1, first=name) for name in ("y_sum", "gate")] if kind == "counter" else []
    orders = [None, Order(2), *early, *BY_BLOCKS]
    assert [close(module, order) for order in orders] == [True] * len(orders)


EXPERTS = {"tiny_experts/mixtral-5x2": 2, "tiny_latent_experts/deepseek-v3-8x3": 3}


@pytest.mark.parametrize("name", EXPERTS)
def test_ranks_have_experts_of_their_own(name):
    """Five of them dealt to two ranks, of which one has a place that is empty."""
    model = MODEL.parents[1] / name
    weights = drawn(model)
    module = program(EXPERTS[name], "tags", model)
    check_claims(module)
    given = weights, wanted(model, weights)
    orders = [None, Order(2), BY_BLOCKS[0]]
    assert [close(module, order, *given) for order in orders] == [True] * len(orders)


def test_text_reads_back():
    text = meshc.print_module(program())
    assert "{kept = 1, ranks = 1}" in text and "task.meet {kind = ranks}" in text
    assert meshc.print_module(meshc.parse(text)) == text


def test_one_rank_is_not_run_alone():
    module = program()
    machine = TaskMachine(module)
    machine.load("x", np.zeros((2, 1, module.dims["E"])))
    for name, array in WEIGHTS.items():
        if any(
            p.name == name and np.shape(array) == p.tensor.shape(module.dims) for p in module.ports
        ):
            machine.load(name, array)
    with pytest.raises(MeshcError, match="interp-"):
        machine.run({"pos": (0, 0), RANK: 0})


def test_each_meeting_of_ranks_is_needed():
    """Blocks that pass one by compute something else in some order; that at the start of a run
    keeps it from the run before, and is one of the claims."""
    module = program()
    meets = [op for op in module.walk() if isinstance(op, task.Meet)]
    of_ranks = [n for n, op in enumerate(meets) if op.kind == task.RANKS]
    assert len(of_ranks) == 3 and of_ranks[0] == 0
    for number in of_ranks[1:]:
        orders = [replace(o, passed=frozenset({number})) for o in BY_BLOCKS]
        assert not all(computes(module, order) for order in orders)


@dataclass(frozen=True)
class Edit:
    name: str
    apply: Callable[[Module], None]


def edits(kind: str) -> list[Edit]:
    """Of what ranks give each other and of where they meet, each of one place."""
    module, found = program(kind=kind), []
    every = [*module.walk()]
    for number, op in enumerate(every):
        if isinstance(op, task.Meet):
            kinds = [k for k in (task.COUNTER, task.TAGS) if op.kind == task.RANKS]
            hears = isinstance(every[number + 1], task.Phase) and any(
                isinstance(need, task.Need) and shared(module, need)
                for need in every[number + 1].regions[0].walk()
            )
            kinds += [task.COUNTER] if op.kind == task.TAGS and hears else []
            found += [
                Edit(f"{number} meets by {k}", lambda m, n=number, k=k: kind_of(m, n, k))
                for k in kinds
            ]
        if isinstance(op, task.Phase):
            continue
        if isinstance(op, (task.Need, task.Give)) and shared(module, op):
            for place, index in enumerate(op.view.indices):
                others = [Whole()] if isinstance(index, Point) else []
                if isinstance(index, Point):
                    others += [Point(index.at + 1), Point(Expr.const(0)), Point(1 - Expr.var(RANK))]
                elif isinstance(index, Whole) and place == 1:
                    others += [Point(Expr.const(0)), Point(Expr.var(RANK))]
                for other in others:
                    words = f"{number} {op.NAME} {op.view}: dim {place} is {other}"
                    found.append(
                        Edit(words, lambda m, n=number, p=place, o=other: index_of(m, n, p, o))
                    )
    for buffer in module.buffers:
        if buffer.ranks is not None:
            name = buffer.value.name
            for value in (None, 0, 2):
                found.append(
                    Edit(f"{name} of ranks {value}", lambda m, b=name, v=value: ranks_of(m, b, v))
                )
            if buffer.tags is not None:
                found.append(Edit(f"{name} without tags", lambda m, b=name: tags_of(m, b, None)))
                found.append(Edit(f"{name} of bits", lambda m, b=name: tags_of(m, b, 0)))
    scratch = [b.value.name for b in module.buffers if b.role == "" and b.ranks is None]
    found += [Edit(f"{name} of ranks", lambda m, b=name: ranks_of(m, b, 1)) for name in scratch]
    found.append(Edit("no ranks", lambda m: setattr(m, "ranks", None)))
    found.append(Edit("no number of the rank", lambda m: m.scalars.pop(RANK)))
    found.append(Edit("one rank more", lambda m: setattr(m, "ranks", replace(m.ranks, count=3))))
    found.append(Edit("numbers from 1", lambda m: m.scalars.update({RANK: (1, 2)})))
    return found


def shared(module: Module, op: task.Need | task.Give) -> bool:
    return any(b.ranks is not None and b.value is op.view.buffer for b in module.buffers)


def kind_of(module: Module, number: int, kind: str) -> None:
    [*module.walk()][number].kind = kind


def index_of(module: Module, number: int, place: int, index: object) -> None:
    op = [*module.walk()][number]
    view = op.operands[0]
    assert isinstance(view, View)
    indices = [*view.indices]
    indices[place] = index
    op.operands[0] = replace(view, indices=tuple(indices))


def ranks_of(module: Module, name: str, value: int | None) -> None:
    next(b for b in module.buffers if b.value.name == name).ranks = value


def tags_of(module: Module, name: str, value: int | None) -> None:
    next(b for b in module.buffers if b.value.name == name).tags = value


def noticed(edit: Edit, kind: str) -> str:
    """By whom: the verifier, a fact, or what tasks compute."""
    module = clone_module(program(kind=kind))
    try:
        edit.apply(module)
        verify_module(module)
        meshc.parse(meshc.print_module(module))
        check_claims(module)
    except MeshcError as error:
        return error.diagnostics[0].code
    try:
        return (
            "" if all(close(module, order) for order in (None, Order(1), *BY_BLOCKS)) else "numbers"
        )
    except MeshcError as error:
        return error.diagnostics[0].code


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["counter", pytest.param("tags", marks=pytest.mark.slow)])
def test_edits_are_noticed(kind):
    by = {edit.name: noticed(edit, kind) for edit in edits(kind)}
    assert len(by) >= 30
    assert {name for name, code in by.items() if not code} == set()
    assert {"not-ordered"} < set(by.values())


def test_a_trace_of_tasks_of_ranks_is_refused() -> None:
    """Those of one rank alone have not what the others give."""
    module = program()
    with pytest.raises(MeshcError, match=r"\[interp-ranks\]: ranks of graphs are run beside"):
        run_trace(module, random_trace(module, 1))
