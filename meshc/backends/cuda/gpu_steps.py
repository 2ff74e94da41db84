"""The decode step of a GPU: one kernel made of tasks, on one GPU and of each of several.

Another kernel of tasks reads its prompts; with ``--chunk`` kernels of a fused graph do, more tokens
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from meshc.backends.cuda.chunk_launches import ChunkGraph
from meshc.backends.cuda.emit import MANIFEST, emit
from meshc.backends.cuda.gpu_divisions import (
    NO_TASKS,
    OF_PARTS,
    Divisions,
    Made,
    Tried,
    Written,
    of_memory,
)
from meshc.backends.cuda.memory import memory_of
from meshc.backends.cuda.program import LONG, MOST_CHUNK, TASKS, from_json
from meshc.backends.cuda.step_times import predicted
from meshc.backends.cuda.tasks.attending import attends_by_statements
from meshc.backends.cuda.tasks.caches import NHD
from meshc.backends.cuda.tasks.kernel_parts import every_part, kernel_parts
from meshc.backends.cuda.tasks.ring_room import QueriesDoNotFit
from meshc.backends.cuda.tasks.step import TaskGraph
from meshc.backends.request import CompileRequest
from meshc.backends.target_options import NO_OVERLAP, CudaOptions
from meshc.cost.prompts import most_chunk
from meshc.ir.batch import BATCH
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.passes.graph.batch_tokens import BatchTokens
from meshc.passes.instruments import Instrument
from meshc.passes.manager import PassManager
from meshc.pipelines import choosing_passes, pipeline_to_tasks
from meshc.support.diagnostics import Diagnostics, MeshcError, fail

CHUNKS = (16, 8, 4)
"""Tokens of a prompt that tasks read at once, the most for which a block has room."""
LONG_CHUNKS = (64, 32)
"""The same where left sides of products lie in memory, of prompts for which there are no kernels:
each launch reads the weights once."""
MOST_LONG = 128
"""Tokens that tasks read at once at the most."""
LEAST_OF_KERNELS, WORTH_KERNELS = 64, 128
"""Tokens that are left of a prompt from which on kernels of many tokens are faster than tasks, and
tokens that caches hold from which on a program has both: 512 tokens of Llama-3-8B take an H200
36.2 ms, 128 take 19.7, and tasks read 16 in 5.4."""
SOME = 4
"""Tokens for which a task of a prompt attends where those of as many as its queries may be leave no
room, which norms and rotations of many take, and those of one leave some."""


@dataclass
class GpuStep:
    """What the step of ``request`` is made of. ``given`` is its graph; ``prompts`` gives that of
    a chunk of so many tokens of a prompt, None for a model without, ``kernels`` the graph fused
    into kernels of so many tokens at once, where the least number or more are left.
    ``tasks_of_prompts`` are those that read chunks of them, once there are files, by the names of
    their kernels. Of a ``trial`` no more is asked than whether there is such a step."""

    request: CompileRequest
    model: str
    given: Module
    prompts: Callable[[int], Module | None]
    kernels: Callable[[int, int], ChunkGraph]
    report: Diagnostics
    instruments: Sequence[Instrument] = ()
    verified: bool = True
    trial: bool = False
    tasks_of_prompts: dict[str, Module] = field(default_factory=dict, init=False)

    @cached_property
    def divisions(self) -> Divisions:
        """What divides the work of the step and of its prompts."""
        how = self.report, self.instruments, self.verified, self.trial
        return Divisions(self.request, *how)

    @property
    def _options(self) -> CudaOptions:
        return self.request.options_of(CudaOptions)

    def files(self) -> Made:
        """The step that is fastest of those that obey the request. Raises MeshcError."""
        graph = self._mixing(self.divisions.dealt(self.given))
        by_kernels = self._by_asked_kernels(graph)
        if by_kernels is not None and not isinstance(by_kernels, MeshcError):
            module, files = by_kernels
        else:
            module, files = self.divisions.step(graph, self._emitted)
            step = TaskGraph(module, graph)
            asked = self.request.chunk
            if asked is not None and asked > CHUNKS[0]:
                files = self._with_long(step, [], files)
            if not self.tasks_of_prompts and not self._options.batch_tokens:
                files, prompts = self._with_prompts(step, files)
                if prompts is None and by_kernels is not None:
                    raise by_kernels
                if prompts is not None and asked is None and not self.request.serving:
                    files = self._with_more(step, prompts, files)
        time = "" if self.trial else predicted(module)
        count = sum(1 for _ in every_part(kernel_parts(module)))
        kernels = f"{count} kernels" if count else "one kernel"
        tokens = self._options.batch_tokens
        batch = f" and reads {tokens} tokens of any requests" if tokens else ""
        words = f"the decode step is {kernels} made of tasks{batch}"
        words += f": {time}" if time else ""
        self.report.remark("step-of-tasks", words + self._slow(module))
        return module, files

    def _mixing(self, graph: Module) -> Module:
        """``graph``, where it is asked for as that of a batch of tokens of its requests and of one
        more, which is nobody."""
        tokens = self._options.batch_tokens
        if not tokens:
            return graph
        batch = BatchTokens(tokens, 1 + self.request.requests)
        return PassManager([batch], self.instruments, self.verified).run(graph, self.report)

    def _emitted(
        self,
        tasks: TaskGraph,
        kernels: ChunkGraph | None = None,
        prompts: Sequence[TaskGraph] = (),
    ) -> dict[str, str]:
        asked = self._options
        how = asked.page, asked.collectives, kernels, prompts, self._choice
        return emit(tasks, self.model, *how)

    @cached_property
    def _choice(self) -> TaskGraph | None:
        """The choice of a token by the logits of a step; None for a step of no language model, for
        one that verifies drafts, of which the host knows which it takes, and for one of nodes, the
        first of which begins with what the last one gives."""
        if self._options.drafts or self._options.nodes > 1:
            return None
        try:
            given = clone_module(self.given)
            given.dims[BATCH] = self._options.batch_tokens or given.dims.get(BATCH, 1)
            graph = PassManager(choosing_passes(alone=True)).run(given)
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

    def _with_prompts(
        self, step: TaskGraph, files: dict[str, str]
    ) -> tuple[dict[str, str], TaskGraph | None]:
        """``files`` of a ``step`` with a kernel of tasks that reads prompts, and these; if there is
        one."""
        asked = self.request.chunk
        sizes = [n for n in CHUNKS if asked is None or n < asked]
        if asked is not None and asked <= max(CHUNKS, default=0):
            sizes.insert(0, asked)
        for tokens in sizes:
            prompts = self.prompts(tokens)
            if prompts is None:
                break
            graph = self.divisions.dealt(prompts)
            made = self._chunk_or_less(graph, lambda tasks: self._emitted(step, None, [tasks]))
            if not isinstance(made, MeshcError):
                self.divisions.keep(made)
                (chunk, files), _ = made
                self.tasks_of_prompts[TASKS] = chunk
                words = f"one kernel made of tasks reads up to {tokens} tokens of a prompt at once"
                self.report.remark("prompt-of-tasks", words + self._slow(chunk))
                return files, TaskGraph(chunk, graph)
            first = made.diagnostics[0]
            if first.code not in NO_TASKS | OF_PARTS:
                raise made
            if tokens == sizes[-1] or first.code in NO_TASKS or of_memory(made):
                words = f"steps read prompts, token by token: {first.message} ({first.code})"
                self.report.warning("prompt-by-steps", words)
                break
        return files, None

    def _by_asked_kernels(self, graph: Module) -> Made | MeshcError | None:
        """The step of ``graph`` whose prompts are read by kernels of as many tokens at once as are
        asked for, None where none are; or their refusal, where tasks may read as many."""
        asked = self.request.chunk
        if asked is None or self._options.codes_caches:
            return None

        def made() -> Made:
            kernels = self.kernels(asked, 1)
            return self.divisions.step(graph, lambda tasks: self._emitted(tasks, kernels))

        if asked > MOST_LONG or self._options.overlap != NO_OVERLAP:
            return made()
        tried = self.divisions.tried(made)
        if not isinstance(tried, MeshcError):
            self.divisions.keep(tried)
            return tried[0]
        first = tried.diagnostics[0]
        if first.code not in NO_TASKS | OF_PARTS or self.request.keep_quantised:
            raise tried
        words = f"tasks read prompts: {first.message} ({first.code})"
        self.report.remark("prompt-of-kernels", words)
        return tried

    def _with_more(
        self, step: TaskGraph, prompts: TaskGraph, files: dict[str, str]
    ) -> dict[str, str]:
        """``files`` of a ``step`` whose ``prompts`` are read by tasks, with what reads more of
        their tokens at once: kernels, of a model that has such over the same weights, or more
        tasks."""
        if self.given.capacity < WORTH_KERNELS:
            return files
        if self._options.gpus == 1 and self._options.nodes == 1:
            both = self._with_kernels(step, prompts, files)
            if both is not None:
                return both
        return self._with_long(step, [prompts], files)

    def _with_long(
        self, step: TaskGraph, less: Sequence[TaskGraph], files: dict[str, str]
    ) -> dict[str, str]:
        """``files`` of a ``step`` with tasks that read more tokens of a prompt at once than those
        of ``less``, or as many as are asked for: left sides of their products lie in memory, and
        come through the ring with the weights. Where there are no such tasks ``files`` are as they
        were."""
        asked = self.request.chunk
        for tokens in LONG_CHUNKS if asked is None else (asked,):
            more = self.prompts(tokens)
            if more is None or tokens > self.given.capacity:
                continue
            graph = self.divisions.dealt(more)

            def written(tasks: TaskGraph) -> dict[str, str]:
                if asked is None and self._slow(tasks.placed) and not self._slow(less[0].placed):
                    fail("cuda-shape", "tasks of fewer tokens attend by routines of the library")
                return self._emitted(step, None, [tasks, *less])

            made = self._chunk(graph, written, True)
            if isinstance(made, MeshcError):
                first = made.diagnostics[0]
                if first.code not in NO_TASKS | OF_PARTS:
                    raise made
                if asked is not None:
                    words = f"no tasks read {asked} tokens of a prompt at once"
                    self.report.warning("chunk-of-fewer", f"{words}: {first.message}")
                continue
            (chunk, found), _ = made
            self.divisions.keep(made)
            files, name = found, LONG if less else TASKS
            self.tasks_of_prompts = {name: chunk, **self.tasks_of_prompts}
            count = more.dims["L"]
            words = f"one kernel made of tasks reads up to {count} tokens of a prompt at once"
            if less:
                words += f" where more than {less[0].placed.dims['L']} are left"
            self.report.remark("prompt-of-tasks", words + self._slow(chunk))
            break
        return files

    def _with_kernels(
        self, step: TaskGraph, prompts: TaskGraph, files: dict[str, str]
    ) -> dict[str, str] | None:
        """``files`` of a ``step`` whose prompts are read by tasks, with kernels that read more of
        their tokens at once; None of a model that has none over the same weights."""
        words = ""
        if self.request.keep_quantised:
            words = "kernels of many tokens read decoded weights"
        elif self._options.kv_layout == NHD:
            words = "kernels of many tokens have pages of their own"
        elif self._options.codes_caches:
            words = "kernels of many tokens keep caches of 16 bits"
        if words:
            self.report.remark("prompt-of-kernels", f"tasks read prompts: {words}")
            return None
        device = self.request.the_device()
        for tokens in sorted({MOST_CHUNK, most_chunk(device)}, reverse=True):
            try:
                both = self._emitted(step, self.kernels(tokens, LEAST_OF_KERNELS), [prompts])
            except MeshcError as refusal:
                first = refusal.diagnostics[0]
                if first.code not in NO_TASKS | OF_PARTS:
                    raise
                words = f"tasks read prompts: {first.message} ({first.code})"
                self.report.remark("prompt-of-kernels", words)
                return None
            program, alone = (from_json(made[MANIFEST]) for made in (both, files))
            held, room = memory_of(program), device.global_memory_bytes
            if held.total <= room:
                break
        if held.weights > memory_of(alone).weights or held.total > room:
            more = "weights of their own" if held.total <= room else "no room beside the caches"
            words = "tasks read prompts: kernels of many tokens would have "
            self.report.remark("prompt-of-kernels", words + more)
            return None
        most, least = program.prefills[0].tokens, program.prefills[0].least
        words = f"kernels read up to {most} tokens of a prompt at once where {least} or more are"
        self.report.remark("prompt-of-kernels", f"{words} left")
        return both

    def _chunk_or_less(self, graph: Module, written: Written) -> Tried:
        """A chunk of a prompt with left sides of products in memory or, where that cannot be, with
        these in each block that multiplies them; or a refusal. Of weights that stay quantised, of
        which a tile has more rows, blocks have them themselves where they have room."""
        in_memory = (True, False) if not self.request.keep_quantised else (False, True)
        made = self._chunk(graph, written, in_memory[0])
        if not isinstance(made, MeshcError) or of_memory(made):
            return made
        if made.diagnostics[0].code not in NO_TASKS | OF_PARTS:
            return made
        return self._chunk(graph, written, in_memory[1])

    def _chunk(
        self,
        graph: Module,
        written: Written,
        columns: bool = False,
    ) -> Tried:
        """A chunk of a prompt whose tasks attend for as many tokens as a block has room for; or its
        refusal, that of tasks that attend for one where queries leave no room. With ``columns``
        left sides of products lie in memory."""

        def made(together: int) -> Tried:
            return self.divisions.tried(
                lambda: self.divisions.in_parts(graph, written, 0, together, columns)
            )

        most = made(0)
        if not isinstance(most, QueriesDoNotFit):
            return most
        one = made(1)
        if isinstance(one, MeshcError):
            return one
        some = made(SOME)
        return one if isinstance(some, MeshcError) else some
