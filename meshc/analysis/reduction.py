"""Cost and channel use of all_reduce algorithms, in PLMR terms.

Cycles of one all_reduce of ``words`` words over ``size`` cores in a line:

- k_tree with groups g1 .. gK: each phase is a chain of g - 1 routing stages, each of which costs
  beta and the words of the message, over strides of the product of the groups before; then a
  multicast of ``size`` hops. One group is the pipeline. Shape of the model: WaferLLM section 6
  and the reduce model of Luczynski et al. (HPDC'24); alpha and beta are device numbers.
- ring: 2 (size - 1) steps of words/size words, each at most two hops.

These are predictions used to choose; the fabric simulator measures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshc.analysis.tiling import ceil_div

MAX_PHASES = 4


@dataclass(frozen=True)
class LinkCost:
    """Cycles per hop (alpha), per routing stage (beta), per word on a link."""

    hop_cycles: float
    route_cycles: float
    word_cycles: float = 1.0


@dataclass(frozen=True)
class Reduction:
    """One way to reduce over an axis: its algorithm, groups, and cycles for the given words."""

    algo: str
    groups: tuple[int, ...]
    cycles: float

    def __str__(self) -> str:
        if self.algo == "ring":
            return "ring"
        name = "pipeline" if len(self.groups) == 1 else f"{len(self.groups)}-tree"
        return f"{name} ({' x '.join(map(str, self.groups))})"


def tree_groups(size: int, phases: int) -> tuple[int, ...]:
    """Balanced group sizes whose product reaches ``size``, smallest last."""
    group = max(2, 1)
    while group**phases < size:
        group += 1
    found: list[int] = []
    covered = 1
    while covered < size:
        step = min(group, ceil_div(size, covered))
        found.append(step)
        covered *= step
    return tuple(found)


def tree_cycles(groups: tuple[int, ...], size: int, words: int, link: LinkCost) -> float:
    """Cycles of a K-tree all_reduce, its multicast included."""
    stride, total = 1, 0.0
    for group in groups:
        stage = link.route_cycles + words * link.word_cycles + stride * link.hop_cycles
        total += (group - 1) * stage
        stride *= group
    return total + size * link.hop_cycles + words * link.word_cycles + link.route_cycles


def ring_cycles(size: int, words: int, link: LinkCost) -> float:
    """Cycles of reduce-scatter and all-gather around an interleaved ring."""
    stage = link.route_cycles + ceil_div(words, size) * link.word_cycles + 2 * link.hop_cycles
    return 2 * (size - 1) * stage


def candidates(size: int, segments: int, words: int, link: LinkCost) -> Iterator[Reduction]:
    """Ways to reduce over ``size`` cores. With ``segments`` the first phases stay inside one
    segment, so that reductions inside segments and over all of them share their channels."""
    inner = size // segments
    for phases in range(1, MAX_PHASES + 1):
        groups = tree_groups(inner, phases)
        if len(groups) == phases or (inner == 1 and phases == 1):
            outer = (segments,) if segments > 1 else ()
            every = (*groups, *outer)
            yield Reduction("k_tree", every, tree_cycles(every, size, words, link))


def tree_inputs(position: int, size: int, groups: tuple[int, ...], segment: int) -> int:
    """Channels on which a core at ``position`` receives: chains of its phases and multicasts.

    ``segment`` below ``size`` counts the multicast inside a segment too.
    """
    stride, count = 1, 0
    for group in groups:
        if position % stride == 0:
            place = (position // stride) % group
            count += place <= group - 2 and position + stride < size and group > 1
        stride *= group
    count += position >= 1
    if segment < size and segment > 1:
        count += position % segment >= 1
    return count


def most_inputs(size: int, groups: tuple[int, ...], segment: int) -> int:
    """Largest :func:`tree_inputs` on the axis."""
    return max(tree_inputs(p, size, groups, segment) for p in range(size))
