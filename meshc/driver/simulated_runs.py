"""What a run of emitted CSL takes on the fabric simulator, by the cycles that the compiler
predicts, and which programs get to its tokens with the fewest.

A prompt is read in one piece by a program of its own, or token by token by the steps that continue
it. The first takes the fewer launches; on a large mesh it takes many times the cycles of a step, as
its products shift their operands all the way round, so that steps are cheaper for short prompts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from meshc.backends.request import CompileRequest
from meshc.driver.compiled import Compiled
from meshc.driver.compiling import compile_loaded
from meshc.driver.models import LoadedModel
from meshc.passes.instruments import Instrument
from meshc.support.diagnostics import Diagnostics

PE_CYCLES_PER_SECOND = 100e6
"""Cycles of all PEs that the simulator's C machine does in a second of a processor, on one thread:
measured for a decode step of SmolLM2-135M in f16 on 96x96 PEs (docs/csl.md), 157,711 predicted
cycles in 14.5 s."""
SECONDS_OF_A_PE = 0.0026
"""What all else takes for each PE, compiling for the simulator and loading above all, in the same
run: 24 s, 5 of them in the C compiler."""


@dataclass(frozen=True)
class SimulatedRun:
    """What a run takes: launches of its ``programs``, the predicted cycles of all launches, and PEs
    of a program."""

    programs: int
    launches: int
    cycles: int
    pes: int

    @property
    def seconds(self) -> float:
        """About how long the simulator takes on one thread that has a processor for itself."""
        simulated = self.cycles * self.pes / PE_CYCLES_PER_SECOND
        return self.programs * self.pes * SECONDS_OF_A_PE + simulated

    @property
    def words(self) -> str:
        """The same in words."""
        return (
            f"about {_duration(self.seconds)} on the simulator: {self.launches} launches, "
            f"{self.cycles:,} predicted cycles of {self.pes:,} PEs"
        )


def simulated_run(compiled: Compiled, lengths: Sequence[int], count: int) -> SimulatedRun:
    """What it takes ``compiled``, which is for CSL, to continue prompts of ``lengths`` tokens by
    ``count`` tokens each."""
    cycles: dict[str, int] = {}
    reports = [name for name in compiled.files if name.endswith("report.json")]
    for name in reports:
        predicted = json.loads(compiled.files[name])["predicted_cycles"]
        of_one = {name.split("/")[0] if "/" in name else "decode": predicted}
        cycles |= predicted if isinstance(predicted, dict) else of_one
    step, read, steps = cycles["decode"], 0, count * len(lengths)
    if "prefill" in compiled.modules:
        most = compiled.modules["prefill"].scalars["len"][1]
        read = sum(-(-(length - 1) // most) for length in lengths)
    else:
        steps += sum(lengths) - len(lengths)
    reading = cycles["prefill"] if read else 0
    pes = max(module.the_mesh().cores for module in compiled.modules.values())
    return SimulatedRun(len(reports), read + steps, read * reading + steps * step, pes)


def cheapest(
    loaded: LoadedModel,
    request: CompileRequest,
    lengths: Sequence[int],
    count: int,
    instruments: Sequence[Instrument] = (),
    report: Diagnostics | None = None,
) -> Compiled:
    """The programs for CSL that continue prompts of ``lengths`` tokens by ``count`` tokens in the
    fewest predicted cycles: those of both phases, or steps alone. Raises what compiling does."""
    said = Diagnostics()
    both = compile_loaded(loaded, request, instruments, said)
    found = both
    if {*both.modules} == {"prefill", "decode"}:
        own = Diagnostics()
        steps = compile_loaded(loaded, request.changed(phase="decode"), instruments, own)
        reading, stepping = (simulated_run(one, lengths, count) for one in (both, steps))
        if stepping.cycles <= reading.cycles:
            found, said = steps, own
            said.remark("reading", _why_by_steps(reading, stepping))
    if report is not None:
        for message in said.messages:
            report.add(message)
    return found


def _why_by_steps(reading: SimulatedRun, stepping: SimulatedRun) -> str:
    return (
        f"decode steps read the prompt, token by token: {stepping.cycles:,} predicted cycles to "
        f"the last token, where a program that reads it in one piece takes {reading.cycles:,}"
    )


def _duration(seconds: float) -> str:
    """``seconds`` in words, as roughly as they are known."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 90 * 60:
        return f"{round(seconds / 60)} min"
    return f"{seconds / 3600:.1f} h"
