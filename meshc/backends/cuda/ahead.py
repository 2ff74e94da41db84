"""What the next kernel reads first, brought towards L2 where it finds no room beside this one.

A grid whose blocks lie beside those of the one in front fills its rings before that one has ended.
Where the two take more shared memory than a multiprocessor has, memory would be idle meanwhile: the
warp that copies then prefetches, when it has nothing left to copy, what keeps memory busy for its
latency. Only weights, which no kernel writes.
"""

from __future__ import annotations

from dataclasses import replace

from meshc.backends.cuda.gathering import Launches, Step
from meshc.backends.cuda.kernels.tiles import FirstReads
from meshc.backends.cuda.launches import Launch, Stage
from meshc.backends.cuda.program import Kernel, Prefill
from meshc.devices import Device


def with_prefetches(
    step: Step, launches: Launches, prefill: Prefill | None
) -> tuple[Launches, Prefill | None]:
    """The launches with what each of a layer prefetches as a last argument, where its kernel does;
    texts of such kernels in ``step`` are replaced. Prompts share kernels, and prefetch nothing.

    How much a kernel prefetches, and how it is dealt out, is in its text. Where stages share one,
    that is what it prefetches in the stage of most layers; in another stage it prefetches what is
    read in the same way, or nothing.
    """
    compiled = _compiled(step, launches.stages)
    for name, first in compiled.items():
        step.texts[step.kernels[name].file] = step.renderers[name](first)

    def unused(part: tuple[Launch, ...]) -> tuple[Launch, ...]:
        return tuple(
            replace(one, arguments=(*one.arguments, "")) if one.kernel in compiled else one
            for one in part
        )

    if prefill is not None:
        stages = tuple(replace(s, launches=unused(s.launches)) for s in prefill.stages)
        before, after = unused(prefill.before), unused(prefill.after)
        prefill = replace(prefill, before=before, stages=stages, after=after)
    found = []
    for n, stage in enumerate(launches.stages):
        following = launches.stages[n + 1] if n + 1 < len(launches.stages) else None
        found.append(_with_prefetches(step, compiled, stage, following))
    return replace(launches, stages=tuple(found)), prefill


def _compiled(step: Step, stages: tuple[Stage, ...]) -> dict[str, FirstReads]:
    """What each kernel that prefetches has in its text."""
    found: dict[str, FirstReads] = {}
    for stage in sorted(stages, key=lambda stage: -stage.layers):
        for launch, following in zip(stage.launches, _turned(stage.launches), strict=True):
            reads = _first_reads(step, launch, following)
            if reads is not None and launch.kernel in step.renderers:
                found.setdefault(launch.kernel, reads[1])
    return found


def _with_prefetches(
    step: Step, compiled: dict[str, FirstReads], stage: Stage, following: Stage | None
) -> Stage:
    """``stage``, with what is prefetched in its layers and, in the last, of ``following``."""

    def weight(launch: Launch, reader: Launch) -> str:
        """The argument of ``reader`` that ``launch`` prefetches, or no memory."""
        reads = _first_reads(step, launch, reader)
        return reads[0] if reads is not None and reads[1] == compiled[launch.kernel] else ""

    found = []
    for launch, reader in zip(stage.launches, _turned(stage.launches), strict=True):
        if launch.kernel in compiled:
            first = weight(launch, reader)
            if launch is stage.launches[-1]:
                first = first.replace("[]", "[+1]")
            launch = replace(launch, arguments=(*launch.arguments, first))
        found.append(launch)
    last = stage.launches[-1]
    ahead = ""
    if following is not None and last.kernel in compiled:
        ahead = weight(last, following.launches[0]).replace("[]", "[0]")
    return replace(stage, launches=tuple(found), ahead=ahead)


def _turned(launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
    """What runs behind each launch of a layer, behind the last one the first of the next layer."""
    return launches[1:] + launches[:1]


def _first_reads(step: Step, launch: Launch, reader: Launch) -> tuple[str, FirstReads] | None:
    """What ``reader`` reads first, and of which of its arguments; None where nothing is worth
    prefetching because blocks of both find room on a multiprocessor."""
    one, other = step.kernels[launch.kernel], step.kernels[reader.kernel]
    return None if _fit_together(step.device, one, other) else step.first_reads.get(reader)


def _fit_together(device: Device, one: Kernel, other: Kernel) -> bool:
    """Whether a block of each finds room on a multiprocessor."""
    held = one.shared_bytes + other.shared_bytes + 2 * device.whole("block_reserved_bytes")
    return held <= device.whole("core_memory_bytes")
