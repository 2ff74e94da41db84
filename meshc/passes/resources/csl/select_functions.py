"""select-csl-functions: which functions of elements a CSL program computes by vector operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshc.analysis.csl.banks import shifts
from meshc.analysis.csl.instruction_costs import Costs
from meshc.analysis.csl.memory import WIDENED, scratch_of
from meshc.analysis.csl.operands import BY_STEPS
from meshc.analysis.csl.products import MOST_SCRATCH_BYTES
from meshc.analysis.csl.shared_buffers import planned_bytes
from meshc.analysis.csl.unread import may_go_over
from meshc.analysis.csl.vector_ways import KERNELS, chosen_way, copied_words, room_for_scratch
from meshc.analysis.csl.ways import ACROSS, ANGLES, BY, HALF, KEPT, NEWTON, TURNS, VECTOR, WHOLE
from meshc.analysis.csl.words import known_at_start
from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.ir.types import DType
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class SelectCslFunctions(Pass):
    """Write functions of many elements as vector operations where fewer cycles are predicted.

    ``functions`` are exponentials, SiLU and GELU with f16 results, computed in f32 from operands
    of either type (``way = vector``); with ``accuracy = half`` exponentials of f16 and SiLU go in
    f16 alone (``way = half``), where they are off by a few units of what it resolves; ``single``
    says that all go in f32.
    ``angles`` are sines and cosines of all frequencies of a RoPE at once, by polynomials;
    ``turns`` turns all pairs of lanes of all heads by the same operations, ``narrow`` those with
    f16 results in f16 alone, by sines and cosines rounded to it (``way = angles_half_turns``), as
    far as accuracy is half. A setting that is false leaves its kind one by one, or in f32. With
    ``kept`` sines and cosines of all rows of a prompt are worked out when the program starts, for
    all layers (``way = angles_half_kept_turns``). ``blocks`` does all this for rows and columns
    whose number is known only when the program runs: so many at once, and those that are left one
    by one (``way = vector_by_4``); with ``whole`` the last block of a function goes over the end,
    where nobody reads what lies behind it (``way = vector_whole_by_4``). It also takes so many
    elements at a time where there is no scratch for all of them. ``newton`` takes the reciprocals
    and roots of quotients and norms with f16 results by two of Newton's steps (``way = newton``),
    right to 6.7e-6, in place of the library's. ``across`` takes maxima and sums of rows, and masks
    empty slots, lane by lane for all rows at once (``way = across``) where that is less than row by
    row.

    All share f32 scratch, at most a quarter of what buffers and the device's reserve leave, and
    8 KiB; what other kernels take, and functions one by one would, is there in any case, and so are
    256 bytes. A remark names the functions that would take fewer cycles with more.

    Before::

        tile.silu %b, %a

    After::

        tile.silu %b, %a {way = half}
    """

    NAME: ClassVar[str] = "select-csl-functions"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset({"csl_functions"})
    INVALIDATES: ClassVar[frozenset[str]] = frozenset({"csl_memory", "csl_words"})

    functions: bool = True
    angles: bool = True
    turns: bool = True
    kept: bool = True
    blocks: bool = True
    whole: bool = True
    newton: bool = True
    across: bool = True
    narrow: bool = True
    accuracy: str = "half"

    def run(self, module: Module, report: Diagnostics) -> Module:
        if self.accuracy not in ("half", "single"):
            fail("bad-option", f"no accuracy={self.accuracy}", help="it is half or single")
        device = module.the_device()
        free = device.whole("memory_bytes") - device.reserved_bytes - planned_bytes(module)
        costs = Costs(device, shifts(module))
        settings = {
            VECTOR: self.functions,
            ANGLES: self.angles,
            TURNS: self.turns,
            KEPT: self.kept,
            BY: self.blocks,
            HALF: self.accuracy == "half",
            NEWTON: self.newton,
            ACROSS: self.across,
        }
        allowed = [part for part, yes in settings.items() if yes]
        of_turns = [part for part in allowed if self.narrow or part != HALF]
        known = known_at_start(module)
        functions = [op for op in module.walk() if isinstance(op, Compute) and op.kernel in KERNELS]
        for op in functions:
            op.way, op.dsr = "", 0
        room = room_for_scratch(free, _shared(module))
        ample = MOST_SCRATCH_BYTES // DType.F32.bytes
        lost: dict[str, None] = {}
        for op in functions:
            parts = of_turns if op.kernel == "rope" else allowed
            if self.whole and op.kernel in BY_STEPS and may_go_over(module, op):
                parts = [*parts, WHOLE]
            op.way = chosen_way(op, costs, room, parts, known)
            if op.way != chosen_way(op, costs, ample, parts, known):
                lost[f"{op.kernel} %{op.views()[0].buffer.name}: {op.way or 'one by one'}"] = None
        if lost:
            report.remark(
                "scratch",
                f"with more than {room * DType.F32.bytes} bytes of scratch functions would take "
                f"fewer cycles: {', '.join(lost)}",
            )
        return module


def _shared(module: Module) -> int:
    """f32 elements of scratch that kernels take while no function says a way, copies of operands
    among them that functions alone take one by one."""
    scratch = scratch_of(module)
    others = (
        copied_words(op)
        for op in module.walk()
        if isinstance(op, Compute) and op.kernel not in BY_STEPS
    )
    copies = scratch.get(WIDENED, 0) - max(others, default=0)
    return scratch.get(str(DType.F32), 0) + copies
