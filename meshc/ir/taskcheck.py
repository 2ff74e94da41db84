"""Structure of programs at the task level: phases, families in them, and what tasks may do."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from meshc.ir.affine import Expr
from meshc.ir.core import Block, Op
from meshc.ir.module import Buffer, Module
from meshc.ir.ops import task, tile
from meshc.ir.ranks import RANK
from meshc.ir.types import DType
from meshc.ir.values import Value
from meshc.ir.views import Point, View
from meshc.support.spans import Span

Mistake = tuple[str, Span | None, str]

LEAST_TAGS, MOST_TAGS = 2, 16

_PROGRAM = "a program has phases, meetings, and loops over these"
_PHASE = "a phase has families, whose bodies are tasks"
_TASK = "a task has needs, streams, locals, kernels, loops over these and what is routed, and gives"


def of_tasks(module: Module, op: Op) -> bool:
    """Whether ``op``, one of the tile level, may be used in ``module``, one of the task level."""
    return module.level == "task" and isinstance(op, (tile.Compute, tile.For))


def program_mistakes(module: Module) -> Iterator[Mistake]:
    """What is wrong with where ops of a module of the task level stand and what they write, with a
    help; nothing for modules of other levels."""
    if module.level != "task":
        for buffer in module.buffers:
            place = module.places.get(str(buffer.value))
            of_tasks: dict[str, object] = {"keeps versions": buffer.kept, "has tags": buffer.tags}
            of_tasks |= {"is of all ranks": buffer.ranks, "is coded": buffer.coded}
            for words, fact in (of_tasks | {"is of clusters": buffer.cluster}).items():
                if fact is not None:
                    yield f"{buffer.value} {words}", place, "that is for the task level"
        return
    yield from _of_clusters(module)
    yield from _of_ranks(module)
    yield from _of_experts(module)
    for buffer in module.buffers:
        if buffer.tags is not None:
            yield from _tags(module, buffer)
        if buffer.coded is not None and (buffer.role != "state" or not buffer.type.dtype.floats):
            place = module.places.get(str(buffer.value))
            yield f"{buffer.value} is coded", place, "caches, states of floats, may be"
        versions = buffer.type.shape[0] if buffer.type.shape else 0
        if buffer.kept is not None and (buffer.role or not 1 <= buffer.kept <= versions):
            words = f"{buffer.value} keeps {buffer.kept} of {versions} versions"
            yield words, module.places.get(str(buffer.value)), "scratch keeps 1 to all of them"
    if module.channels:
        yield "tasks have no channels", module.places.get("module"), "they meet in buffers"
    names: set[str] = set()
    for program in module.programs:
        for op in _inside(program.body):
            if not isinstance(op, (task.Phase, task.Meet, tile.For)):
                yield f"{op.NAME or 'a kernel'} stands in no task", op.span, _PROGRAM
        for op in _tags_nowhere(program.body):
            yield "a meeting by tags stands in front of no phase", op.span, _PROGRAM
        families = []
        for phase in program.body.walk():
            for op in (
                phase.regions[0].ops if isinstance(phase, task.Phase) and phase.regions else ()
            ):
                if isinstance(op, task.Family):
                    families.append(op)
                else:
                    yield f"{op.NAME or 'a kernel'} stands in no family", op.span, _PHASE
        for family in families:
            if family.name in names:
                yield f"two families are called '{family.name}'", family.span, "names are unique"
            names.add(family.name)
            dotted = [n for n in (*family.dims, *_loops(family)) if "." in n]
            if dotted:
                yield f"'{dotted[0]}' has a dot", family.span, "dims and loops have names without"
            yield from _in_family(module, family)


def _tags(module: Module, buffer: Buffer) -> Iterator[Mistake]:
    """Tags lie in words of f32 that tasks exchange, and leave more bits than they take."""
    place = module.places.get(str(buffer.value))
    if buffer.role or buffer.type.dtype is not DType.F32:
        yield f"{buffer.value} has tags", place, "words of scratch of f32 have them"
    if not LEAST_TAGS <= (buffer.tags or 0) <= MOST_TAGS:
        words = f"tags of {buffer.value} have {buffer.tags} bits"
        yield words, place, f"they have {LEAST_TAGS} to {MOST_TAGS}"


def _of_clusters(module: Module) -> Iterator[Mistake]:
    """Blocks are in the same clusters in all phases; memory of clusters is scratch."""
    phases = [op for op in module.walk() if isinstance(op, task.Phase)]
    sizes = {(phase.blocks, phase.cluster) for phase in phases}
    of_cluster = len(sizes) == 1 and all(cluster for _, cluster in sizes)
    for phase in phases:
        if phase.cluster and not of_cluster:
            words = f"phase '{phase.name}' has clusters of {phase.cluster}, others have not"
            yield words, phase.span, "blocks are in the same clusters in all phases"
    for op in module.walk():
        if isinstance(op, task.Meet) and op.kind == task.CLUSTER and not of_cluster:
            yield "the blocks of clusters meet, but there are none", op.span, _PROGRAM
    for buffer in module.buffers:
        if buffer.cluster is None:
            continue
        (dim, extent), shape = buffer.cluster, buffer.type.shape
        if buffer.role or not 0 <= dim < len(shape) or not 1 <= extent <= shape[dim]:
            words = f"{buffer.value} has {extent} of dim {dim} in a cluster"
            place = module.places.get(str(buffer.value))
            yield words, place, "scratch has 1 to all elements of one of its dims there"
        elif not of_cluster:
            words = f"{buffer.value} is memory of clusters, but there are none"
            yield words, module.places.get(str(buffer.value)), _PROGRAM


def _of_ranks(module: Module) -> Iterator[Mistake]:
    """A program of ranks knows which one runs it; what ranks give each other is scratch, of which
    each gives what has its number."""
    count = 0 if module.ranks is None else module.ranks.count
    if count and module.scalars.get(RANK) != (0, count - 1):
        words = f"a program of {count} ranks has no scalar '{RANK}' that says which runs it"
        yield words, module.places.get("ranks"), f"such as: scalars {RANK} = 0..{count - 1}"
    shared: dict[Value, int] = {}
    for buffer in module.buffers:
        if buffer.ranks is None:
            continue
        dim, shape = buffer.ranks, buffer.type.shape
        shared[buffer.value] = dim
        place = module.places.get(str(buffer.value))
        if not count:
            yield f"{buffer.value} is of all ranks, but there are none", place, "such as: ranks .."
        elif not 0 <= dim < len(shape) or shape[dim] != count:
            words = f"dim {dim} of {buffer.value} does not count {count} ranks"
            yield words, place, "one of its dims has an index for each rank"
        elif buffer.role or buffer.cluster is not None or (buffer.kept is not None and not dim):
            words = f"{buffer.value} is of all ranks"
            yield words, place, "that is scratch in the memory of GPUs, whose versions come first"
    for op in module.walk():
        if isinstance(op, task.Meet) and op.kind == task.RANKS and not count:
            yield "all ranks meet, but there are none", op.span, _PROGRAM
        if isinstance(op, task.Give) and (view := _first_view(op)) is not None:
            dim = shared.get(view.buffer, -1)
            own = view.indices[dim] if 0 <= dim < len(view.indices) else None
            if dim >= 0 and own != Point(Expr.var(RANK)):
                words = f"task.give: what it gives of {view.buffer} has not the number of a rank"
                yield words, op.span, f"each rank gives its own: '{RANK}' is the index in dim {dim}"


def _of_experts(module: Module) -> Iterator[Mistake]:
    """What stands behind gates that a task needs is needed behind gates alone."""
    routed: set[Value] = set()
    plain: list[tuple[task.Need, View]] = []
    for family in module.walk():
        if not isinstance(family, task.Family) or not family.regions:
            continue
        needed = {op.result for op in family.regions[0].walk() if isinstance(op, task.Need)}
        inside: set[int] = set()
        for op in family.regions[0].walk():
            view = _first_view(op)
            if isinstance(op, task.Routed) and op.regions:
                inside |= {id(one) for one in op.regions[0].walk()}
                if view is not None and view.buffer not in needed:
                    words = f"task.routed: {view.buffer} is nothing that the task needs"
                    yield words, op.span, "need the gates first"
            if isinstance(op, task.Routed) and id(op) in inside:
                yield "task.routed stands in another one", op.span, _TASK
            if isinstance(op, task.Give) and id(op) in inside and view is not None:
                routed.add(view.buffer)
            if isinstance(op, task.Need) and id(op) not in inside and view is not None:
                plain.append((op, view))
    for need, view in plain:
        if view.buffer in routed:
            words = f"task.need: of {view.buffer} only experts give that some row is sent to"
            yield words, need.span, "need it behind their gates (task.routed)"


def _first_view(op: Op) -> View | None:
    """The first operand of ``op``, where it is a view, as of ops that nothing is wrong with."""
    first = op.operands[0] if op.operands else None
    return first if isinstance(first, View) else None


def _inside(block: Block) -> Iterator[Op]:
    """The ops of a program that stand in no phase."""
    for op in block.ops:
        yield op
        if isinstance(op, tile.For):
            for region in op.regions:
                yield from _inside(region)


def _tags_nowhere(block: Block) -> Iterator[task.Meet]:
    """Meetings by tags that no phase stands behind."""
    for op, after in zip_longest(block.ops, block.ops[1:]):
        if isinstance(op, task.Meet) and op.kind == "tags" and not isinstance(after, task.Phase):
            yield op
        if isinstance(op, tile.For):
            for region in op.regions:
                yield from _tags_nowhere(region)


def _loops(family: task.Family) -> list[str]:
    return [op.var for region in family.regions for op in region.walk() if isinstance(op, tile.For)]


def _in_family(module: Module, family: task.Family) -> Iterator[Mistake]:
    buffers = {buffer.value: buffer.role for buffer in module.buffers}
    own: set[Value] = set()
    for op in family.regions[0].walk() if family.regions else ():
        if isinstance(op, task.Local):
            own.update(op.results)
        if isinstance(op, (task.Need, task.Stream, task.Give)):
            view = _first_view(op)
            if view is not None and view.buffer not in buffers:
                yield f"{op.NAME}: {view.buffer} is no buffer of the module", op.span, _TASK
            elif view is not None and (view.reshape or view.order):
                yield f"{op.NAME}: a region is not reshaped", op.span, "reshape the value instead"
            elif view is not None:
                yield from _by_role(op, view, buffers[view.buffer])
            sources = op.operands[1:]
        elif isinstance(op, tile.Compute):
            yield from _written(op, own)
            sources = op.operands
        elif isinstance(op, (task.Local, tile.For)):
            sources = []
        elif isinstance(op, task.Routed):
            sources = op.operands
        else:
            yield f"{op.NAME} stands in a task", op.span, _TASK
            sources = []
        for source in sources:
            if isinstance(source, View) and source.buffer in buffers:
                yield f"{source.buffer} is no value of the task", op.span, "need or stream it"


def _by_role(op: Op, view: View, role: str) -> Iterator[Mistake]:
    """Weights and inputs are streamed only; a state is streamed and given, a result given."""
    allowed = {
        "weight": (task.Stream,),
        "in": (task.Stream,),
        "state": (task.Stream, task.Give),
        "out": (task.Give,),
        "": (task.Need, task.Give),
    }[role]
    if not isinstance(op, allowed):
        kind = f"a buffer of role {role}" if role else "scratch"
        words = " or ".join(cls.NAME for cls in allowed)
        yield f"{op.NAME}: {view.buffer} is {kind}", op.span, f"that is for {words}"


def _written(op: tile.Compute, own: set[Value]) -> Iterator[Mistake]:
    """Kernels write the locals of a task."""
    for declared, view in zip(op.declared.operands_of(op.params), op.operands, strict=False):
        if declared.role != "in" and isinstance(view, View) and view.buffer not in own:
            words = f"tile.{op.kernel} writes {view.buffer}, which is not task.local"
            yield words, op.span, "copy it to a local of the task before"
