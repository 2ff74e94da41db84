"""Cost of reductions by each algorithm, in PLMR terms.

Cycles of one reduction of ``words`` words over ``size`` cores in a line:

- k_tree with groups g1 .. gK: each phase is a chain of g cores over strides of the product of the
  groups before. Where words flow through it without being stored, a phase costs beta, the words
  once, and per core the relay and the hops of the stride; else each core costs beta, the words and
  a step of the program. An all_reduce ends in a multicast of ``size`` hops. One group is the
  pipeline, two balanced ones the two-phase tree, groups of two the binary tree. Shape of the
  model: WaferLLM section 6 and the reduce model of Luczynski et al. (HPDC'24), whose chain of P
  cores takes B + (2 T_R + 2)(P - 1) cycles.
- folded: the trees of both halves of the axis at once, each as above over half as many cores, a
  message from one to the other of the two cores at the middle, and a multicast over half of the
  hops; by segments, a second one inside of these.
- ring: 2 (size - 1) steps of words/size words, each at most two hops and a step of the program,
  and the copies that cut the words into parts and join them.

Alpha, beta and the cost of a step are device numbers. These are predictions used to choose; the
fabric simulator measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from meshc.analysis.layout.tiling import ceil_div
from meshc.cost.operations import message, shifts
from meshc.cost.terms import NOTHING, Cost
from meshc.devices import Device

LEAST_FOLDED = 16
"""Cores of a line from which on trees are tried folded: over fewer their exchange costs about what
half of the way saves."""
MAX_PHASES = 4
"""Phases of the trees that are always tried."""
MAX_PAIRED = 64
"""Cores over which a tree of pairs is tried: the text of programs must not grow with the mesh."""
TREES = {"pipeline": 1, "two_phase": 2, "tree": 64}
"""Phases of trees that have a name of their own; more than needed means groups of two."""


@dataclass(frozen=True)
class Reduction:
    """One way to reduce over an axis: its algorithm, groups, and cost for the given words."""

    algo: str
    groups: tuple[int, ...]
    cost: Cost

    @property
    def cycles(self) -> float:
        """Predicted cycles."""
        return self.cost.total

    def __str__(self) -> str:
        if self.algo == "ring":
            return "ring"
        name = "pipeline" if len(self.groups) == 1 else f"{len(self.groups)}-tree"
        name = f"{self.algo} {name}" if self.algo != "k_tree" else name
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


def reduce_cost(
    groups: tuple[int, ...],
    words: int,
    device: Device,
    work: Cost | None = None,
    size: int | None = None,
) -> Cost:
    """Until the first of ``size`` cores (default: as many as the groups have) has the sum."""
    if work is None and device.link.relay_cycles is not None:
        return _relayed_cost(groups, words, device, prod(groups) if size is None else size)
    stride, total = 1, Cost()
    for group in groups:
        hops = Cost(transfer=(group - 1) * stride * device.link.hop_cycles)
        if work is not None:
            total += (shifts(1, words, 0, device) + work) * (group - 1) + hops
        else:
            total += shifts(group - 1, words, 0, device) + hops
        stride *= group
    return total


def _relayed_cost(groups: tuple[int, ...], words: int, device: Device, size: int) -> Cost:
    """The same where words flow through a chain. The last group of a phase may have fewer cores:
    its first has the sum earlier, and is the farthest of its group in the next phase."""
    whole = last = Cost()
    stride, cores = 1, size
    for group in groups:
        chains = ceil_div(cores, group)
        left = cores - (chains - 1) * group
        if left > 1:
            near = _chain(left - 1, stride, words, device)
            far = _chain(left, stride, words, device)
            last = max(whole + near, last + far, key=lambda cost: cost.total)
        whole = last if chains == 1 else whole + _chain(group, stride, words, device)
        stride, cores = stride * group, chains
    return last


def _chain(cores: int, stride: int, words: int, device: Device) -> Cost:
    """Until the first of so many ``cores``, ``stride`` apart, has the sum of all; of one core until
    it has added what has come."""
    link = device.link
    assert link.relay_cycles is not None
    relays = max(0, cores - 2) * (link.relay_cycles - link.hop_cycles)
    return message(words, (cores - 1) * stride, device) + Cost(stages=relays)


def tree_cost(
    groups: tuple[int, ...], size: int, words: int, device: Device, work: Cost | None = None
) -> Cost:
    """A K-tree all_reduce, its multicast included; ``work`` is what a core does with a message
    before it sends on, where that is more than to add."""
    return reduce_cost(groups, words, device, work, size) + message(words, size, device)


def folded_cost(
    groups: tuple[int, ...],
    reach: int,
    crosses: bool,
    words: int,
    device: Device,
    work: Cost | None = None,
    segment: int = 0,
) -> Cost:
    """An all_reduce of folded trees over ``reach`` cores each; they meet where it ``crosses`` the
    middle of its line. With a ``segment`` it comes back by way of the first of so many cores."""
    meeting = NOTHING
    if crosses:
        meeting = message(words, 1, device) + (work if work is not None else NOTHING)
    back = message(words, reach - segment, device)
    if segment:
        back += message(words, segment, device)
    return reduce_cost(groups, words, device, work, reach) + meeting + back


def ring_cost(size: int, part: int, device: Device, dealing: Cost = NOTHING, hops: int = 2) -> Cost:
    """Reduce-scatter and all-gather of parts of ``part`` words around a ring whose steps have
    ``hops``, two where it is interleaved; ``dealing`` is what a core does to cut out the parts and
    to join them again."""
    return dealing + shifts(2 * (size - 1), part, hops, device)


def dealing_cost(elements: int, padded: int, size: int, dtype: str, device: Device) -> Cost:
    """``elements`` of a core copied into ``size`` slots of equal parts, ``padded`` elements in all,
    and back: the room for them is cleared, they are copied into it, from there part by part into
    slots, and the same way out."""
    copied = 3 * padded + 2 * elements
    return Cost(copied / device.lanes(dtype), overhead=(3 + 2 * size) * device.op_cycles)


def tree_candidates(size: int, segments: int, phases: int = 0) -> list[tuple[int, ...]]:
    """Groups of the trees that are tried over ``size`` cores, more than one: one tree for each of
    the first numbers of phases and, over few cores, the tree of pairs, or only that of ``phases``
    (as many as there are cores for). With ``segments``
    the first phases stay inside one segment where groups of its size make it up, so that they run
    on the chains of reductions inside segments."""
    inner = size // segments
    if inner == 1:
        inner, segments = size, 1
    outer = (segments,) if segments > 1 else ()
    found: list[tuple[int, ...]] = [(size,)] if outer and not phases else []
    pairs = [(inner - 1).bit_length()] if inner <= MAX_PAIRED else []
    for count in [phases] if phases else sorted({*range(1, MAX_PHASES + 1), *pairs}):
        inside = tree_groups(inner, count)
        groups = (*inside, *outer)
        if outer and (prod(inside) > inner or (len(inside) < count and not phases)):
            groups = tree_groups(size, count + 1)
        if phases or len(groups) == count + len(outer):
            found.append(groups)
    return found
