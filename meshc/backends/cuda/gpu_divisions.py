"""Divisions of the work of a step of tasks, or of tasks that read a prompt: the first for which
blocks have room, or that which is predicted to be fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from meshc.analysis.tasks.tiles import CACHE_PAGE, USUAL_PAGE
from meshc.backends.cuda.memory import GpuIsTooSmall
from meshc.backends.cuda.step_times import step_with_full_caches
from meshc.backends.cuda.tasks.ring_room import QueriesDoNotFit
from meshc.backends.cuda.tasks.step import TaskGraph
from meshc.backends.own_passes import with_own_passes
from meshc.backends.request import CompileRequest
from meshc.backends.target_options import CudaOptions
from meshc.ir.batch import BATCH, LENGTH
from meshc.ir.clone import clone_module
from meshc.ir.codes import CODE_FORMATS
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops import graph as whole
from meshc.ir.ops import task, tile
from meshc.passes.instruments import Instrument
from meshc.passes.kept_formats import named
from meshc.passes.manager import PassManager
from meshc.passes.task.meet import Meet
from meshc.pipelines import CODING, CUTTING, DEALING, STREAMING, graph_passes, pipeline_to_tasks
from meshc.support.diagnostics import Diagnostic, Diagnostics, MeshcError, fail

PARTS = (4, 8, 2, 1)
"""Into how many parts of their width products may be divided whose left side has ``WIDE`` bytes, in
the order in which they are tried: a block that reads a part begins earlier, and more do where all
of it leaves no room for the ring."""
PARTS_OF_CODES = (1, 4, 8, 2)
"""The same where weights stay quantised, of the first two of which the one that is predicted to be
faster is tried first: with parts a ring has room for more tiles, which only those wait for that
take less to decode than to come (docs/step-times.md)."""
COLUMN_PARTS = (1, 4, 8)
"""The same where left sides lie in memory: whole, or in parts that are copied where a block has no
room for all of them, and whose sums others add."""
STREAMING_REFUSED = "keep-quantised"
"""The code of weights that cannot stay quantised, of which parts may cut groups."""
WIDE = 32_768
MOST_RECORDS = 131_072
"""Bytes of what attention leaves in a layer that all blocks read; more is merged by tasks of its
own first. On an H200 a step of Llama-2-7B with 68 KB takes 1.5 % longer with these, one of
Llama-3-8B with 270 KB 1.6 % less."""
NO_TASKS = frozenset({"no-tasks", "cuda-graph"})
OF_PARTS = frozenset({"does-not-fit", "cuda-shape"})
MEETING = Meet.NAME
CUTS = CUTS_NOTHING, CUTS_ALL, CUTS_BY_TIME = ("none", "all", "auto")
"""Which meetings end a kernel: none, all, or those by which a step is predicted to be fastest."""
COLUMNS_TOO_SLOW = 1.01
"""How many times as long as another step of one kernel one with left sides of products in memory is
predicted to take, from which on it is not taken. On an H200 steps of Llama-3-8B for 16 requests
took 6936 us, with left sides that threads copied, and 7451 without, which were predicted at 7061
and 7025; for 8 requests 5582 and 5460, predicted at 5467 and 5253."""
LEAST_COLUMNS = 5
"""Requests of a step from which on left sides of products, rounded once, may lie in memory; those
of fewer are two values each, the rounded one and what rounding left."""

Made = tuple[Module, dict[str, str]]
"""The module that a step was written from, and its files."""
Tried = tuple[Made, list[Diagnostic]] | MeshcError
"""What was made and what is reported of it, or its refusal."""
Written = Callable[[TaskGraph], dict[str, str]]
"""The files of tasks."""


@dataclass
class Divisions:
    """Divides what ``request`` asks for into tasks; what is kept is reported, and what passes leave
    is ``verified``, as the pass manager has it. In a ``trial`` the first of what fits is taken: how
    fast it is, nobody asks."""

    request: CompileRequest
    report: Diagnostics
    instruments: Sequence[Instrument] = ()
    verified: bool = True
    trial: bool = False

    @property
    def _options(self) -> CudaOptions:
        return self.request.options_of(CudaOptions)

    def tried(self, make: Callable[[], Made]) -> Tried:
        """What ``make`` gives and reports, which the report does not keep; or its refusal."""
        said = len(self.report.messages)
        try:
            made = make()
            return made, self.report.messages[said:]
        except MeshcError as refusal:
            return refusal
        finally:
            del self.report.messages[said:]

    def keep(self, tried: tuple[Made, list[Diagnostic]]) -> None:
        """Let the report have what is said of what was made."""
        for message in tried[1]:
            self.report.add(message)

    def step(self, graph: Module, written: Written) -> Made:
        """The step in clusters of as many blocks as are asked for or, where only a dataflow is, of
        as many as are predicted to be fastest; in none where neither is."""
        asked = self._options
        if asked.cluster is not None or not asked.dataflow:
            return self.in_parts(graph, written, asked.cluster or 0)
        clusters = graph.the_device().clusters
        sizes = clusters.sizes if clusters else (1,)

        def of(size: int) -> Callable[[], Made]:
            return lambda: self.in_parts(graph, written, size)

        tried = [self.tried(of(size)) for size in sizes]
        made = [one for one in tried if not isinstance(one, MeshcError)]
        if not made:
            return of(sizes[0])()  # which is refused
        times = [step_with_full_caches(module) for (module, _), _ in made]
        known = [time.seconds for time in times if time is not None]
        if len(known) < len(times):
            fail(
                "bad-argument",
                f"--dataflow is {asked.dataflow}, but which clusters are fastest is not known of "
                f"{graph.the_device().name}",
                help="--cluster N says of how many blocks they are",
            )
        best = made[known.index(min(known))]
        self.keep(best)
        return best[0]

    def dealt(self, given: Module) -> Module:
        """``given`` behind the passes of the graph, that of a rank of several; it says how long
        pages are that are not as usual."""
        graph, gpus = clone_module(given), self._options.gpus
        if self._options.page != USUAL_PAGE:
            graph.options[CACHE_PAGE] = self._options.page
        kept = self.request.keep_quantised
        chosen = {n: s for n, s in self.request.settings().items() if n == CODING}
        chosen |= {DEALING: dealing(graph, gpus, kept)} if gpus > 1 else {}
        passes = with_own_passes(self.request, graph_passes(chosen))
        return PassManager(passes, self.instruments, self.verified).run(graph, self.report)

    def in_parts(
        self,
        graph: Module,
        written: Written,
        cluster: int,
        together: int = 0,
        columns: bool = False,
    ) -> Made:
        """The first division of products whose columns leave room in a block; in clusters of so
        many blocks. ``columns`` in memory need none."""
        whole = self._tasks(graph, _Division(1, False, cluster, together, columns), None)
        merge = columns or _records_bytes(whole) > MOST_RECORDS
        many = graph.dims.get(BATCH, 1) >= LEAST_COLUMNS
        many = many and not (cluster or columns)
        division = _Division(1, merge, cluster, together, columns)
        refusals = []
        for parts in self._parts(graph, division) if not columns else (1,):
            division = replace(division, parts=parts)
            made = self._meeting(graph, division, written)
            if not isinstance(made, MeshcError):
                if many and not self.trial:
                    made = self._or_columns(graph, made, written)
                self.keep(made)
                return made[0]
            cuts = made.diagnostics[0].code == STREAMING_REFUSED and parts > 1
            if not of_parts(made) and not cuts:
                raise made
            refusals.append(made)
            if isinstance(made, QueriesDoNotFit | GpuIsTooSmall):
                break  # it is no product that leaves no room
        if many and not any(isinstance(one, GpuIsTooSmall) for one in refusals):
            made = self._with_columns(graph, written)
            if not isinstance(made, MeshcError):
                self.keep(made)
                words = "left sides of products lie in memory: blocks have no room for them"
                self.report.remark("columns-in-memory", words)
                return made[0]
        raise next(filter(of_memory, reversed(refusals)), refusals[-1])

    def _parts(self, graph: Module, division: _Division) -> tuple[int, ...]:
        """Into how many parts wide products may be divided, in the order to try."""
        if not self.request.keep_quantised:
            return PARTS
        if self.trial or LENGTH in graph.scalars:
            return PARTS_OF_CODES

        def seconds(parts: int) -> float:
            return self._seconds(graph, replace(division, parts=parts))

        return (*sorted(PARTS_OF_CODES[:2], key=seconds), *PARTS_OF_CODES[2:])

    def _or_columns(
        self,
        graph: Module,
        made: tuple[Made, list[Diagnostic]],
        written: Written,
    ) -> tuple[Made, list[Diagnostic]]:
        """The step that was ``made``, or one with left sides of products in memory where that is
        predicted to be as fast."""
        other = self._with_columns(graph, written)
        if isinstance(other, MeshcError):
            if other.diagnostics[0].code not in NO_TASKS | OF_PARTS:
                raise other
            return made
        one, two = (step_with_full_caches(module) for (module, _), _ in (made, other))
        most = 1.0 if self._options.is_cut else COLUMNS_TOO_SLOW
        if one is None or two is None or two.seconds > most * one.seconds:
            return made
        words = f"left sides of products lie in memory: {one.seconds * 1e6:.0f} us otherwise"
        other[1].append(Diagnostic("remark", "columns-in-memory", words))
        return other

    def _with_columns(self, graph: Module, written: Written) -> Tried:
        """A step with left sides of products in memory, wide ones in the parts that are predicted
        to be faster."""
        divisions = [_Division(parts, True, 0, 0, True) for parts in COLUMN_PARTS]
        best = min(divisions, key=lambda one: self._seconds(graph, one))
        made = self._meeting(graph, best, written)
        refused = isinstance(made, MeshcError) and of_parts(made)
        again = refused and best.parts > 1
        return self._meeting(graph, divisions[0], written) if again else made

    def _seconds(self, graph: Module, division: _Division) -> float:
        """What a step is predicted to take whose blocks meet in front of each phase; infinite where
        that is not known."""
        try:
            time = step_with_full_caches(self._tasks(graph, division, None))
        except MeshcError:
            return inf
        return inf if time is None else time.seconds

    def _meeting(
        self,
        graph: Module,
        division: _Division,
        written: Written,
    ) -> Tried:
        """A step whose tasks meet by a counter or, where that is predicted to be faster, by tags,
        and by the other where one does not fit; clusters of blocks and prompts, most of whose time
        is not that of meetings, meet by a counter. Where a step is cut, or that is predicted to be
        faster and left to be chosen, meetings end kernels. Whether a block has room for the tasks
        is asked before it is found where they meet, but of clusters, whose memory has what all
        layers give until that is folded."""

        def made(kind: str) -> Made:
            placed = self._met(self._tasks(graph, division, self.report), division, kind)
            return placed, written(TaskGraph(placed, graph))

        cut = CUTS_NOTHING if LENGTH in graph.scalars else self._options.cut

        def apart() -> Made:
            tasks = self._tasks(graph, division, None)
            return tasks, written(TaskGraph(tasks, graph))

        if not division.cluster:
            tried = self.tried(apart)
            if isinstance(tried, MeshcError) and of_parts(tried) and not of_memory(tried):
                return tried
        if cut == CUTS_ALL:
            return self.tried(lambda: made(task.KERNEL))
        met = self._within_kernel(graph, division, made)
        if cut == CUTS_NOTHING or self.trial:
            return met
        kernels = self.tried(lambda: made(task.KERNEL))
        if isinstance(met, MeshcError) or isinstance(kernels, MeshcError):
            return met if isinstance(kernels, MeshcError) else kernels
        found = _faster(met, kernels)
        times = [step_with_full_caches(module) for (module, _), _ in (met, kernels)]
        if times[0] and times[1]:
            one, several = (round(time.seconds * 1e6) for time in times if time)
            words = f"a step of one kernel is predicted to take {one} us, one that is cut {several}"
            found[1].append(Diagnostic("remark", "cut", words))
        return found

    def _within_kernel(
        self, graph: Module, division: _Division, made: Callable[[str], Made]
    ) -> Tried:
        """The step of one kernel that is ``made``, whose tasks meet by a counter or by tags."""
        counted = self.tried(lambda: made(task.COUNTER))
        # Tags follow from runs of all layers, and a node passes some.
        some = self._options.nodes > 1 or LENGTH in graph.scalars
        by_counter = division.cluster or division.columns or some
        if by_counter or isinstance(counted, GpuIsTooSmall):
            return counted
        if self.trial and not isinstance(counted, MeshcError):
            return counted
        by_tags = self.tried(lambda: made(task.TAGS))
        if isinstance(by_tags, MeshcError):
            return counted
        if isinstance(counted, MeshcError):
            return by_tags
        return _faster(counted, by_tags)

    def _tasks(self, graph: Module, division: _Division, report: Diagnostics | None) -> Module:
        """The tasks of ``graph``, placed on blocks that do not meet yet. Without a ``report`` they
        are only looked at, and not verified."""
        share = "lanes" if self._options.dataflow == "split_head" else "splits"
        kept = {n: s for n, s in self.request.settings().items() if n == STREAMING}
        chosen = {"expand-tasks": division.spec(share), **kept}
        passes = pipeline_to_tasks(chosen, division.cluster)
        first, last = len(graph_passes()), [step.NAME for step in passes].index(MEETING)
        verified = self.verified and report is not None
        manager = PassManager(passes[first:last], self.instruments, verified)
        return manager.run(clone_module(graph), report)

    def _met(self, tasks: Module, division: _Division, kind: str) -> Module:
        """``tasks``, whose blocks meet by ``kind``."""
        chosen = {CUTTING: CUTTING} if kind == task.KERNEL else {MEETING: f"meet{{kind={kind}}}"}
        passes = pipeline_to_tasks(chosen, division.cluster)
        first = [step.NAME for step in passes].index(MEETING)
        manager = PassManager(passes[first:], self.instruments, self.verified)
        return manager.run(tasks, self.report)


@dataclass(frozen=True)
class _Division:
    """How work is divided: wide left sides of products in so many ``parts``; records of attention
    perhaps merged by tasks of their own; blocks in clusters of so many, if any; tokens of a prompt
    that a task attends for, 0 for the most; and left sides of products perhaps in memory."""

    parts: int
    merge: bool
    cluster: int
    together: int
    columns: bool = False

    def spec(self, share: str) -> str:
        """How tasks are expanded: blocks of clusters have attention and its part of the output
        projection by key heads, and ``share`` lanes or the splits of tokens."""
        own = f"heads=true,{share}={self.cluster}"
        grain = own if self.cluster else f"merge={str(self.merge).lower()}"
        grain += ",columns=true" if self.columns else ""
        return f"expand-tasks{{parts={self.parts},{grain},wide={WIDE},together={self.together}}}"


def _faster(
    one: tuple[Made, list[Diagnostic]], other: tuple[Made, list[Diagnostic]]
) -> tuple[Made, list[Diagnostic]]:
    """The ``other`` step, where it is predicted to be faster."""
    times = [step_with_full_caches(module) for (module, _), _ in (one, other)]
    if times[0] and times[1] and times[1].seconds < times[0].seconds:
        return other
    return one


def of_parts(refusal: MeshcError) -> bool:
    """Whether other parts may be possible where some are refused."""
    return refusal.diagnostics[0].code in OF_PARTS


def of_memory(refusal: MeshcError) -> bool:
    """Whether the GPU's memory has no room for a program, whose parts notes then tell; it may be
    that of a block instead."""
    first = refusal.diagnostics[0]
    return first.code == "does-not-fit" and bool(first.notes)


def _records_bytes(placed: Module) -> int:
    """Bytes of what attention leaves in a layer, which all blocks read unless it is merged."""
    found = 0
    for op in placed.walk():
        if isinstance(op, task.Family) and any(map(_streams, op.regions[0].ops)):
            gives = (one for one in op.regions[0].ops if isinstance(one, task.Give))
            roles = {b.value: b.role for b in placed.buffers}
            for give in gives:
                if roles[give.view.buffer] == "":
                    count = prod(e.constant for e in give.view.shape())
                    found = max(found, 4 * count * prod(op.sizes))
    return found


def _streams(op: Op) -> bool:
    """Whether ``op`` is a loop over tiles of a cache."""
    return isinstance(op, tile.For) and any(isinstance(o, task.Stream) for o in op.regions[0].ops)


def dealing(module: Module, gpus: int, formats: Sequence[str] = ()) -> str:
    """The spec of tensor-parallel for kernels, which look up whole tables and read rows by eights,
    or whole groups of weights that stay quantised in ``formats``."""
    tables = dict.fromkeys(op.dim for op in module.walk() if isinstance(op, whole.Embed))
    kept = [CODE_FORMATS[form].span for form in named(formats).values() if form in CODE_FORMATS]
    multiple = max([8, *kept])
    return f"tensor-parallel{{ranks={gpus},multiple={multiple},keep=[{','.join(tables)}]}}"
