"""Edits of a program of tasks are noticed: by the verifier, by a fact, or by what tasks compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from reduced import each

import meshc
from meshc.interp.check import check_outcomes, random_trace, run_trace
from meshc.interp.sessions import Session
from meshc.interp.task_orders import Order
from meshc.ir.clone import clone_module
from meshc.ir.core import Block, Op
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.ir.verifier import verify_module
from meshc.ir.views import Point, Range, View
from meshc.support.diagnostics import MeshcError
from meshc.verify import check_claims

MODEL = Path(__file__).parents[1] / "data" / "tiny_families" / "phi3-5h1-window"
PASSES = "expand-tasks{rows=8,tokens=4},place-tasks{blocks=5},meet,fold-scratch"
CUT = "expand-tasks{rows=8,tokens=4},place-tasks{blocks=3},meet,fold-scratch,cut"
BY_TAGS = "expand-tasks{rows=8,tokens=4},place-tasks{blocks=3},meet{kind=tags},fold-scratch"
ORDERS = [None, *(Order(seed, blocks=True) for seed in range(3)), Order(1)]


@dataclass(frozen=True)
class Edit:
    """A change of the op of a number in text order, or of a buffer."""

    name: str
    apply: Callable[[Module], None]


def graph() -> Module:
    given = {"phase": "decode", "seq": 16, "device": "h200", "batch": 2}
    compiled = meshc.compile(str(MODEL), dtype="f32", compile_to="graph", **given)
    return compiled.modules["decode"]


def program(passes: str = PASSES) -> Module:
    return meshc.PassManager(meshc.parse_pipeline(passes)).run(graph())


def edits(module: Module) -> list[Edit]:
    """Every edit of every kind, each of one place."""
    return [
        *regions(module),
        *limits(module),
        *guards(module),
        *counts(module),
        *meetings(module),
        *versions(module),
    ]


def ops(module: Module) -> list[Op]:
    return list(module.walk())


def regions(module: Module) -> Iterator[Edit]:
    """Regions that begin one element further on, or one before, in each of their dims."""
    for number, op in enumerate(ops(module)):
        if not isinstance(op, (task.Need, task.Stream, task.Give)):
            continue
        for place, index in enumerate(op.view.indices):
            for step in (-1, 1) if isinstance(index, (Point, Range)) else ():
                words = f"{number} {op.NAME} {op.view}: dim {place} {step:+}"
                yield Edit(words, lambda m, n=number, p=place, s=step: move(ops(m)[n], p, s))


def move(op: Op, place: int, step: int) -> None:
    view = op.operands[0]
    assert isinstance(view, View)
    index = view.indices[place]
    moved = Point(index.at + step) if isinstance(index, Point) else index
    if isinstance(index, Range):
        moved = replace(index, start=index.start + step)
    op.operands[0] = replace(
        view, indices=(*view.indices[:place], moved, *view.indices[place + 1 :])
    )


def limits(module: Module) -> Iterator[Edit]:
    """Streams that bring one token more or less."""
    for number, op in enumerate(ops(module)):
        if isinstance(op, task.Stream) and op.below is not None:
            for step in (-1, 1):

                def apply(m: Module, n: int = number, s: int = step) -> None:
                    stream = ops(m)[n]
                    assert isinstance(stream, task.Stream) and stream.below is not None
                    stream.below = stream.below + s

                yield Edit(f"{number} {op.NAME} {op.view}: below {step:+}", apply)


def guards(module: Module) -> Iterator[Edit]:
    """Guards that hold everywhere, and ones that hold elsewhere."""
    for number, op in enumerate(ops(module)):
        for words, contrary in (("no", False), ("other", True)) if op.when is not None else ():
            name = f"{number} {op.NAME or getattr(op, 'kernel', '')}: {words} guard"
            yield Edit(name, lambda m, n=number, c=contrary: set_guard(m, n, c))


def set_guard(module: Module, number: int, contrary: bool) -> None:
    op = ops(module)[number]
    assert op.when is not None
    op.when = ~op.when if contrary else None


def counts(module: Module) -> Iterator[Edit]:
    """A round or a task fewer or more."""
    for number, op in enumerate(ops(module)):
        for step in (-1, 1):
            if isinstance(op, tile.For):

                def apply(m: Module, n: int = number, s: int = step) -> None:
                    loop = ops(m)[n]
                    assert isinstance(loop, tile.For)
                    loop.count = loop.count + s

                yield Edit(f"{number} tile.for {op.var}: count {step:+}", apply)
            for place in range(len(op.dims)) if isinstance(op, task.Family) else ():

                def resize(m: Module, n: int = number, p: int = place, s: int = step) -> None:
                    family = ops(m)[n]
                    assert isinstance(family, task.Family)
                    sizes = list(family.sizes)
                    sizes[p] += s
                    family.sizes = tuple(sizes)

                yield Edit(f"{number} @{op.name}: {op.dims[place]} {step:+}", resize)


def meetings(module: Module) -> Iterator[Edit]:
    """Meetings that are left out, and phases of fewer blocks than others."""
    for number, op in enumerate(ops(module)):
        if isinstance(op, task.Meet):
            yield Edit(f"{number} task.meet: none", lambda m, n=number: drop(m, ops(m)[n]))
        if isinstance(op, task.Phase):

            def apply(m: Module, n: int = number) -> None:
                phase = ops(m)[n]
                assert isinstance(phase, task.Phase)
                phase.blocks -= 1

            yield Edit(f"{number} phase {op.name}: a block fewer", apply)


def drop(module: Module, op: Op) -> None:
    def inside(block: Block) -> None:
        block.ops = [one for one in block.ops if one is not op]
        for one in block.ops:
            for region in one.regions:
                inside(region)

    inside(module.program.body)


def versions(module: Module) -> Iterator[Edit]:
    """Scratch that keeps a version fewer, or the only one in place of two."""
    for number, buffer in enumerate(module.buffers):
        if buffer.kept is not None and buffer.kept > 1:

            def apply(m: Module, n: int = number) -> None:
                found = m.buffers[n]
                assert found.kept is not None
                found.kept -= 1

            yield Edit(f"{buffer.value}: a version fewer", apply)


def tags(module: Module) -> Iterator[Edit]:
    """Words without tags."""
    for number, buffer in enumerate(module.buffers):
        if buffer.tags is not None:
            yield Edit(
                f"{buffer.value}: no tags", lambda m, n=number: setattr(m.buffers[n], "tags", None)
            )


def noticed(edit: Edit, given: Module) -> str:
    """What notices an edit; empty if nothing does."""
    module = clone_module(given)
    edit.apply(module)
    try:
        verify_module(module)
    except MeshcError:
        return "verifier"
    try:
        check_claims(module)
    except MeshcError:
        return "fact"
    before = graph()
    trace = random_trace(before, 3, 9, first=(7, 3))
    wanted = run_trace(before, trace)
    for order in ORDERS:
        try:
            session = Session(module, trace.constant, order=order)
            steps = [array for rows, at in trace.steps for array in session.step(rows, at)]
            check_outcomes(before, module, wanted, steps)
        except MeshcError:
            return "interpreter"
    return ""


@pytest.fixture(scope="module")
def given() -> Module:
    return program()


EQUIVALENT = {
    "in a run of tokens that no query sees": [
        f"{op}: no guard"
        for op in (
            "62 task.stream",
            "63 task.stream",
            *("65 gemm", "66 scale", "67 mask_causal", "68 mask_window"),
            *("70 row_max", "72 exp_sub", "73 row_sum", "74 gemm"),
        )
    ],
    "values of a task that does not merge them": [
        f"{op}: no guard"
        for op in ("77 gemm", "78 scale", "80 row_max", "82 exp_sub", "83 row_sum", "84 gemm")
    ],
    "a bound of what is larger anyway": [
        f"{number} at_least: {words} guard" for number in (71, 81) for words in ("no", "other")
    ],
}
"""Edits that change nothing, by the reason."""

COUNT = 261


@pytest.mark.parametrize("number", each(range(COUNT), 12))
def test_edit_is_noticed(number: int, given: Module) -> None:
    found = edits(given)
    assert len(found) == COUNT
    names = [name for names in EQUIVALENT.values() for name in names]
    assert len(names) <= COUNT // 10
    expected = "" if found[number].name in names else None
    what = noticed(found[number], given)
    assert what == expected or (what and expected is None), found[number].name


@pytest.fixture(scope="module")
def given_by_tags() -> Module:
    return program(BY_TAGS)


def edits_by_tags(module: Module) -> list[Edit]:
    return [*meetings(module), *versions(module), *tags(module)]


COUNT_BY_TAGS = 21


@pytest.mark.parametrize("number", each(range(COUNT_BY_TAGS), 12))
def test_edit_of_tags_is_noticed(number: int, given_by_tags: Module) -> None:
    found = edits_by_tags(given_by_tags)
    assert len(found) == COUNT_BY_TAGS
    assert noticed(found[number], given_by_tags), found[number].name


def test_an_end_of_a_kernel_that_is_left_out_is_noticed() -> None:
    given = program(CUT)
    found = [edit for edit in meetings(given) if "task.meet" in edit.name]
    kinds = [op.kind for op in given.walk() if isinstance(op, task.Meet)]
    assert {*kinds} == {task.KERNEL} and len(found) == len(kinds) == 6
    assert all(noticed(edit, given) for edit in found)


def test_equivalent_edits_are_edits(given: Module) -> None:
    names = {edit.name for edit in edits(given)}
    assert {name for names in EQUIVALENT.values() for name in names} <= names
