"""The decode step of a GPU: kernels that patterns of its graph are, or one kernel made of tasks.

Kernels of patterns (``fuse-cluster``) read prompts many tokens at once and run on several GPUs, but
there are patterns for some models only. A program of tasks is there for every dense model; asked
for by ``--persistent`` it is the step, and kernels of patterns, where there are any, read prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from meshc.backends import cuda
from meshc.driver.request import CompileRequest
from meshc.ir.clone import clone_module
from meshc.ir.core import Op
from meshc.ir.module import Module
from meshc.ir.ops import task, tile
from meshc.passes.instruments import Instrument
from meshc.passes.manager import PassManager
from meshc.pipelines import TASK_STAGES, pipeline_to_tasks
from meshc.support.diagnostics import Diagnostics, MeshcError

PARTS = (4, 8, 2, 1)
"""Into how many parts of their width products may be divided whose left side has ``WIDE`` bytes, in
the order in which they are tried: a block that reads a part begins earlier, and more do where all
of it leaves no room for the ring."""
WIDE = 32_768
MOST_RECORDS = 131_072
"""Bytes of what attention leaves in a layer that all blocks read; more is merged by tasks of its
own first. On an H200 a step of Llama-2-7B with 68 KB takes 1.5 % longer with these, one of
Llama-3-8B with 270 KB 1.6 % less."""
_NO_KERNELS = frozenset({"cuda-graph", "cuda-shape"})
_OF_PARTS = frozenset({"does-not-fit", "cuda-shape"})


@dataclass(frozen=True)
class GpuStep:
    """What the step of ``request`` is made of. ``given`` is its graph, ``fused`` gives the module
    of its kernels by patterns, ``written`` the files of a module and of tasks with it."""

    request: CompileRequest
    model: str
    given: Module
    fused: Callable[[], Module]
    written: Callable[[Module, cuda.TaskGraph | None], dict[str, str]]
    report: Diagnostics
    instruments: Sequence[Instrument] = ()

    def files(self) -> tuple[Module, dict[str, str]]:
        """The module that the step was written from, and its files. Raises MeshcError."""
        if self.request.persistent:
            return self._of_tasks()
        said = len(self.report.messages)
        try:
            module = self.fused()
            return module, self.written(module, None)
        except MeshcError as refusal:
            if not self._may_be_tasks(refusal):
                raise
            made, first = self._instead(refusal), refusal.diagnostics[0]
            del self.report.messages[said:]
        self.report.remark(
            "step-of-tasks",
            f"the decode step is one kernel made of tasks, and reads prompts token by token: "
            f"{first.message} ({first.code})",
        )
        return made

    def _instead(self, refusal: MeshcError) -> tuple[Module, dict[str, str]]:
        """A step of tasks alone; where there is none either, both refusals."""
        try:
            return self._in_parts(
                lambda tasks: cuda.emit_tasks(tasks, self.model, self.request.page)
            )
        except MeshcError as other:
            if {d.code for d in other.diagnostics} <= {"no-tasks", *_NO_KERNELS}:
                note = f"nor is it made of tasks: {other.diagnostics[0].message}"
                both = (replace(d, notes=(*d.notes, note)) for d in refusal.diagnostics)
                raise MeshcError(both) from other
            raise

    def _may_be_tasks(self, refusal: MeshcError) -> bool:
        """Whether nothing was asked for that only kernels of patterns obey."""
        asked = self.request
        own = asked.gpus > 1 or asked.cluster is not None or bool(asked.dataflow)
        refused = {d.code for d in refusal.diagnostics if d.severity == "error"}
        return not own and asked.chunk is None and refused <= _NO_KERNELS

    def _of_tasks(self) -> tuple[Module, dict[str, str]]:
        """A step of tasks, with kernels that read prompts where there are such."""
        try:
            kernels = self.fused()
        except MeshcError as refusal:
            if not self._may_be_tasks(refusal):
                raise
            return self._alone(refusal)

        def with_prompts(tasks: cuda.TaskGraph) -> dict[str, str]:
            return self.written(kernels, tasks)

        try:
            return self._in_parts(with_prompts)
        except MeshcError as refusal:
            if not self._may_be_tasks(refusal):
                raise
            return self._alone(refusal)

    def _alone(self, refusal: MeshcError) -> tuple[Module, dict[str, str]]:
        made = self._in_parts(lambda tasks: cuda.emit_tasks(tasks, self.model, self.request.page))
        first = refusal.diagnostics[0]
        self.report.remark(
            "prompt-by-steps", f"steps read prompts, token by token: {first.message} ({first.code})"
        )
        return made

    def _in_parts(
        self, written: Callable[[cuda.TaskGraph], dict[str, str]]
    ) -> tuple[Module, dict[str, str]]:
        """The first division of products whose columns leave room in a block."""
        graph = clone_module(self.given)
        before = pipeline_to_tasks()[: -len(TASK_STAGES)]
        graph = PassManager(before, self.instruments).run(graph, self.report)
        merge = _records_bytes(self._placed(graph, 1, False, Diagnostics())) > MOST_RECORDS
        for parts in PARTS:
            report = Diagnostics()
            placed = self._placed(graph, parts, merge, report)
            try:
                files = written(cuda.TaskGraph(placed, graph))
            except MeshcError as error:
                if parts == PARTS[-1] or error.diagnostics[0].code not in _OF_PARTS:
                    raise
                continue
            for message in report.messages:
                self.report.add(message)
            return placed, files
        raise AssertionError("the last division is one that says what is wrong")

    def _placed(self, graph: Module, parts: int, merge: bool, report: Diagnostics) -> Module:
        """The placed program of tasks of ``graph``."""
        merged = "true" if merge else "false"
        spec = f"expand-tasks{{parts={parts},merge={merged},wide={WIDE}}}"
        passes = pipeline_to_tasks({"expand-tasks": spec})[-len(TASK_STAGES) :]
        return PassManager(passes, self.instruments).run(clone_module(graph), report)


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
