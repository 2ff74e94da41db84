"""What the next kernel reads first, brought towards L2 where it finds no room beside this one.

A grid whose blocks lie beside those of the one in front fills its rings before that one has ended.
Where the two take more shared memory than a multiprocessor has, memory would be idle meanwhile: the
warp that copies then prefetches, when it has nothing left to copy, what keeps memory busy for its
latency. Only weights, which no kernel writes.
"""

from __future__ import annotations

from dataclasses import replace

from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.arena import CORE_BYTES, RESERVED_BYTES
from meshc.backends.cuda.program import Kernel, Launch, Prefill

Parts = dict[str, tuple[Launch, ...]]


def with_prefetches(
    step: Step, launches: Parts, prefill: Prefill | None
) -> tuple[Parts, Prefill | None]:
    """The launches with what each of a layer prefetches as a last argument, where its kernel does;
    texts of such kernels in ``step`` are replaced. Prompts share kernels, and prefetch nothing."""
    layer, changed = launches["layer"], set()
    found = list(layer)
    for n, launch in enumerate(layer):
        following = layer[(n + 1) % len(layer)]
        render, first = step.renderers.get(launch.kernel), step.first_reads.get(following.kernel)
        kernel, after = step.kernels[launch.kernel], step.kernels[following.kernel]
        if render is None or first is None or _fit_together(kernel, after):
            continue
        step.texts[kernel.file] = render(first)
        weight = first.weight if n + 1 < len(layer) else first.weight.replace("[]", "[+1]")
        found[n] = replace(launch, arguments=(*launch.arguments, weight))
        changed.add(launch.kernel)

    def unused(part: tuple[Launch, ...]) -> tuple[Launch, ...]:
        return tuple(
            replace(one, arguments=(*one.arguments, "")) if one.kernel in changed else one
            for one in part
        )

    if prefill is not None:
        prefill = replace(
            prefill,
            before=unused(prefill.before),
            layer=unused(prefill.layer),
            after=unused(prefill.after),
        )
    return {**launches, "layer": tuple(found)}, prefill


def _fit_together(one: Kernel, other: Kernel) -> bool:
    """Whether a block of each finds room on a multiprocessor."""
    return one.shared_bytes + other.shared_bytes + 2 * RESERVED_BYTES <= CORE_BYTES
