"""The decode step of a GPU: one kernel made of tasks, on one GPU and of each of several.

Another kernel of tasks reads its prompts; with ``--chunk`` kernels of a fused graph do, more tokens
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

from meshc.backends.cuda.chunk_launches import ChunkGraph
from meshc.backends.cuda.emit import MANIFEST, emit
from meshc.backends.cuda.memory import GpuIsTooSmall, memory_of
from meshc.backends.cuda.program import MOST_CHUNK, from_json
from meshc.backends.cuda.step_times import predicted, step_with_full_caches
from meshc.backends.cuda.tasks.attending import attends_by_statements
from meshc.backends.cuda.tasks.room import QueriesDoNotFit
from meshc.backends.cuda.tasks.step import TaskGraph
from meshc.backends.options import CudaOptions
from meshc.backends.own_passes import with_own_passes
from meshc.backends.request import CompileRequest
from meshc.ir.batch import LENGTH
from meshc.ir.clone import clone_module
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops import graph as whole
from meshc.ir.ops import task, tile
from meshc.passes.instruments import Instrument
from meshc.passes.manager import PassManager
from meshc.passes.task.meet import Meet
from meshc.pipelines import (
    DEALING,
    STREAMING,
    choosing_passes,
    graph_passes,
    pipeline_to_tasks,
)
from meshc.support.diagnostics import Diagnostic, Diagnostics, MeshcError, fail

PARTS = (4, 8, 2, 1)
"""Into how many parts of their width products may be divided whose left side has ``WIDE`` bytes, in
the order in which they are tried: a block that reads a part begins earlier, and more do where all
of it leaves no room for the ring."""
WIDE = 32_768
MOST_RECORDS = 131_072
"""Bytes of what attention leaves in a layer that all blocks read; more is merged by tasks of its
own first. On an H200 a step of Llama-2-7B with 68 KB takes 1.5 % longer with these, one of
Llama-3-8B with 270 KB 1.6 % less."""
_NO_TASKS = frozenset({"no-tasks", "cuda-graph"})
_OF_PARTS = frozenset({"does-not-fit", "cuda-shape"})
CHUNKS = (16, 8, 4)
"""Tokens of a prompt that tasks read at once, the most for which a block has room."""
LEAST_OF_KERNELS, WORTH_KERNELS = 64, 128
"""Tokens that are left of a prompt from which on kernels of many tokens are faster than tasks, and
tokens that caches hold from which on a program has both: 512 tokens of Llama-3-8B take an H200
36.2 ms, 128 take 19.7, and tasks read 16 in 5.4."""
SOME = 4
"""Tokens for which a task of a prompt attends where those of as many as its queries may be leave no
room, which norms and rotations of many take, and those of one leave some."""


Made = tuple[Module, dict[str, str]]
"""The module that a step was written from, and its files."""


@dataclass
class GpuStep:
    """What the step of ``request`` is made of. ``given`` is its graph; ``prompts`` gives that of
    a chunk of so many tokens of a prompt, None for a model without, ``kernels`` the graph fused
    into kernels of so many tokens at once, where the least number or more are left. ``chunk`` has
    the tasks that read a chunk of a prompt, once there are files and if these have any."""

    request: CompileRequest
    model: str
    given: Module
    prompts: Callable[[int], Module | None]
    kernels: Callable[[int, int], ChunkGraph]
    report: Diagnostics
    instruments: Sequence[Instrument] = ()
    chunk: Module | None = field(default=None, init=False)

    @property
    def _options(self) -> CudaOptions:
        return self.request.options_of(CudaOptions)

    def files(self) -> Made:
        """The step that is fastest of those that obey the request. Raises MeshcError."""
        graph = self._dealt(self.given)
        if self.request.chunk is not None:
            check_chunk(self.given)
            kernels = self.kernels(self.request.chunk, 1)
            module, files = self._step(graph, lambda tasks: self._emitted(tasks, kernels))
        else:
            module, files = self._step(graph, self._emitted)
            step = TaskGraph(module, graph)
            files, prompts = self._with_prompts(step, files)
            if not self.request.serving:
                files = self._with_kernels(step, prompts, files)
        time = predicted(module)
        words = "the decode step is one kernel made of tasks" + (f": {time}" if time else "")
        self.report.remark("step-of-tasks", words + self._slow(module))
        return module, files

    def _emitted(
        self,
        tasks: TaskGraph,
        kernels: ChunkGraph | None = None,
        prompts: TaskGraph | None = None,
    ) -> dict[str, str]:
        asked = self._options
        how = asked.page, asked.collectives, kernels, prompts, self._choice
        return emit(tasks, self.model, *how)

    @cached_property
    def _choice(self) -> TaskGraph | None:
        """The choice of a token by the logits of a step; None for a step of no language model."""
        try:
            graph = PassManager(choosing_passes(alone=True)).run(clone_module(self.given))
        except MeshcError as refusal:
            if refusal.diagnostics[0].code != "unsupported-op":
                raise
            return None
        placed = PassManager(pipeline_to_tasks()).run(clone_module(graph))
        return TaskGraph(placed, graph)

    def _slow(self, module: Module) -> str:
        """Words on what attends slowly, if anything does."""
        slow = attends_by_statements(module, self.given)
        return f"; {', '.join(slow)} attends statement by statement, which is slow" if slow else ""

    def _tried(self, make: Callable[[], Made]) -> tuple[Made, list[Diagnostic]] | MeshcError:
        """What ``make`` gives and reports, which the report does not keep; or its refusal."""
        said = len(self.report.messages)
        try:
            made = make()
            return made, self.report.messages[said:]
        except MeshcError as refusal:
            return refusal
        finally:
            del self.report.messages[said:]

    def _keep(self, tried: tuple[Made, list[Diagnostic]]) -> None:
        for message in tried[1]:
            self.report.add(message)

    def _step(self, graph: Module, written: Callable[[TaskGraph], dict[str, str]]) -> Made:
        """The step in clusters of as many blocks as are asked for or, where only a dataflow is, of
        as many as are predicted to be fastest; in none where neither is."""
        asked = self._options
        if asked.cluster is not None or not asked.dataflow:
            return self._in_parts(graph, written, asked.cluster or 0)
        clusters = graph.the_device().clusters
        sizes = clusters.sizes if clusters else (1,)

        def of(size: int) -> Callable[[], Made]:
            return lambda: self._in_parts(graph, written, size)

        tried = [self._tried(of(size)) for size in sizes]
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
        self._keep(best)
        return best[0]

    def _with_prompts(
        self, step: TaskGraph, files: dict[str, str]
    ) -> tuple[dict[str, str], TaskGraph | None]:
        """``files`` of a ``step`` with a kernel of tasks that reads prompts, and these; if there is
        one."""
        for tokens in CHUNKS:
            prompts = self.prompts(tokens)
            if prompts is None:
                break
            graph = self._dealt(prompts)
            made = self._chunk(graph, lambda tasks: self._emitted(step, None, tasks))
            if not isinstance(made, MeshcError):
                self._keep(made)
                (self.chunk, files), _ = made
                words = f"one kernel made of tasks reads up to {tokens} tokens of a prompt at once"
                self.report.remark("prompt-of-tasks", words + self._slow(self.chunk))
                return files, TaskGraph(self.chunk, graph)
            first = made.diagnostics[0]
            if first.code not in _NO_TASKS | _OF_PARTS:
                raise made
            if tokens == CHUNKS[-1] or first.code in _NO_TASKS or _of_memory(made):
                words = f"steps read prompts, token by token: {first.message} ({first.code})"
                self.report.warning("prompt-by-steps", words)
                break
        return files, None

    def _with_kernels(
        self, step: TaskGraph, prompts: TaskGraph | None, files: dict[str, str]
    ) -> dict[str, str]:
        """``files`` of a ``step`` whose prompts are read by tasks, with kernels that read more of
        their tokens at once, of a model that has such over the same weights."""
        if prompts is None or self._options.gpus > 1 or self.given.capacity < WORTH_KERNELS:
            return files
        if self.request.keep_quantised:
            words = "kernels of many tokens read decoded weights"
            self.report.remark(
                "prompt-of-kernels", f"tasks read prompts however long they are: {words}"
            )
            return files
        try:
            kernels = self.kernels(MOST_CHUNK, LEAST_OF_KERNELS)
            both = self._emitted(step, kernels, prompts)
        except MeshcError as refusal:
            first = refusal.diagnostics[0]
            if first.code not in _NO_TASKS | _OF_PARTS:
                raise
            words = f"tasks read prompts however long they are: {first.message} ({first.code})"
            self.report.remark("prompt-of-kernels", words)
            return files
        program, alone = (from_json(made[MANIFEST]) for made in (both, files))
        held, room = memory_of(program), self.request.the_device().global_memory_bytes
        if held.weights > memory_of(alone).weights or held.total > room:
            more = "weights of their own" if held.total <= room else "no room beside the caches"
            words = "tasks read prompts however long they are: kernels of many tokens would have "
            self.report.remark("prompt-of-kernels", words + more)
            return files
        most, least = program.prefills[0].tokens, program.prefills[0].least
        words = f"kernels read up to {most} tokens of a prompt at once where {least} or more are"
        self.report.remark("prompt-of-kernels", f"{words} left")
        return both

    def _chunk(
        self, graph: Module, written: Callable[[TaskGraph], dict[str, str]]
    ) -> tuple[Made, list[Diagnostic]] | MeshcError:
        """A chunk of a prompt whose tasks attend for as many tokens as a block has room for; or its
        refusal, that of tasks that attend for one where queries leave no room."""

        def made(together: int) -> tuple[Made, list[Diagnostic]] | MeshcError:
            return self._tried(lambda: self._in_parts(graph, written, 0, together))

        most = made(0)
        if not isinstance(most, QueriesDoNotFit):
            return most
        one = made(1)
        if isinstance(one, MeshcError):
            return one
        some = made(SOME)
        return one if isinstance(some, MeshcError) else some

    def _dealt(self, given: Module) -> Module:
        """``given`` behind the passes of the graph, that of a rank of several."""
        graph, gpus = clone_module(given), self._options.gpus
        dealt = {DEALING: dealing(graph, gpus)} if gpus > 1 else {}
        passes = with_own_passes(self.request, graph_passes(dealt))
        return PassManager(passes, self.instruments).run(graph, self.report)

    def _in_parts(
        self,
        graph: Module,
        written: Callable[[TaskGraph], dict[str, str]],
        cluster: int,
        together: int = 0,
    ) -> Made:
        """The first division of products whose columns leave room in a block; in clusters of so
        many blocks."""
        whole = self._tasks(graph, _Division(1, False, cluster, together), None)
        merge = _records_bytes(whole) > MOST_RECORDS
        refusals = []
        for parts in PARTS:
            made = self._meeting(graph, _Division(parts, merge, cluster, together), written)
            if not isinstance(made, MeshcError):
                self._keep(made)
                return made[0]
            if not _of_parts(made):
                raise made
            refusals.append(made)
            if isinstance(made, QueriesDoNotFit | GpuIsTooSmall):
                break  # it is no product that leaves no room
        raise next(filter(_of_memory, reversed(refusals)), refusals[-1])

    def _meeting(
        self,
        graph: Module,
        division: _Division,
        written: Callable[[TaskGraph], dict[str, str]],
    ) -> tuple[Made, list[Diagnostic]] | MeshcError:
        """A step whose tasks meet by a counter or, where that is predicted to be faster, by tags,
        and by the other where one does not fit; clusters of blocks and prompts, most of whose time
        is not that of meetings, meet by a counter. Whether a block has room for the tasks is asked
        before it is found where they meet."""

        def made(kind: str) -> Made:
            placed = self._met(self._tasks(graph, division, self.report), division, kind)
            return placed, written(TaskGraph(placed, graph))

        def apart() -> Made:
            tasks = self._tasks(graph, division, None)
            return tasks, written(TaskGraph(tasks, graph))

        tried = self._tried(apart)
        if isinstance(tried, MeshcError) and _of_parts(tried) and not _of_memory(tried):
            return tried
        counted = self._tried(lambda: made(task.COUNTER))
        by_counter = division.cluster or LENGTH in graph.scalars
        if by_counter or isinstance(counted, GpuIsTooSmall):
            return counted
        by_tags = self._tried(lambda: made(task.TAGS))
        if isinstance(by_tags, MeshcError):
            return counted
        if isinstance(counted, MeshcError):
            return by_tags
        one, other = (step_with_full_caches(module) for (module, _), _ in (counted, by_tags))
        return by_tags if one and other and other.seconds < one.seconds else counted

    def _tasks(self, graph: Module, division: _Division, report: Diagnostics | None) -> Module:
        """The tasks of ``graph``, placed on blocks that do not meet yet. Without a ``report`` they
        are only looked at, and not verified."""
        share = "lanes" if self._options.dataflow == "split_head" else "splits"
        kept = {n: s for n, s in self.request.settings().items() if n == STREAMING}
        chosen = {"expand-tasks": division.spec(share), **kept}
        passes = pipeline_to_tasks(chosen, division.cluster)
        first, last = len(graph_passes()), [step.NAME for step in passes].index(Meet.NAME)
        manager = PassManager(passes[first:last], self.instruments, verified=report is not None)
        return manager.run(clone_module(graph), report)

    def _met(self, tasks: Module, division: _Division, kind: str) -> Module:
        """``tasks``, whose blocks meet by ``kind``."""
        passes = pipeline_to_tasks({"meet": f"meet{{kind={kind}}}"}, division.cluster)
        first = [step.NAME for step in passes].index(Meet.NAME)
        return PassManager(passes[first:], self.instruments).run(tasks, self.report)


@dataclass(frozen=True)
class _Division:
    """How work is divided: wide left sides of products in so many ``parts``; records of attention
    perhaps merged by tasks of their own; blocks in clusters of so many, if any; and tokens of a
    prompt that a task attends for, 0 for the most."""

    parts: int
    merge: bool
    cluster: int
    together: int

    def spec(self, share: str) -> str:
        """How tasks are expanded: blocks of clusters have attention and its part of the output
        projection by key heads, and ``share`` lanes or the splits of tokens."""
        own = f"heads=true,{share}={self.cluster}"
        grain = own if self.cluster else f"merge={str(self.merge).lower()}"
        return f"expand-tasks{{parts={self.parts},{grain},wide={WIDE},together={self.together}}}"


def _of_parts(refusal: MeshcError) -> bool:
    """Whether other parts may be possible where some are refused."""
    return refusal.diagnostics[0].code in _OF_PARTS


def _of_memory(refusal: MeshcError) -> bool:
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


def check_chunk(module: Module) -> None:
    """Raise ``cuda-graph`` where kernels of many tokens at once do not compute what ``module``
    does, in words of models."""
    if any(isinstance(op, whole.TopK) for op in module.walk()):
        fail(
            "cuda-graph",
            "the kernels that --chunk asks for compute no mixtures of experts",
            help="without --chunk a kernel of tasks reads prompts",
        )


def dealing(module: Module, gpus: int) -> str:
    """The spec of tensor-parallel for kernels, which look up whole tables and read rows by
    eights."""
    tables = dict.fromkeys(op.dim for op in module.walk() if isinstance(op, whole.Embed))
    return f"tensor-parallel{{ranks={gpus},multiple=8,keep=[{','.join(tables)}]}}"
