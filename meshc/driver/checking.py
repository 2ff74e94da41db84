"""``--check``: what each pass leaves must compute what it was given, and hold what it claims."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

from meshc.interp.check import Outcome, Trace, check_outcomes, random_trace, run_from
from meshc.interp.inputs import RUN_TIME_ROWS, wanted_inputs
from meshc.interp.nearness import watched_choices
from meshc.interp.token_batches import told_alike
from meshc.ir.batch import POSITION, REQUEST, requests_of
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.printer import print_module
from meshc.passes.base import Pass
from meshc.passes.brought_passes import failed, origin_of
from meshc.passes.instruments import Instrument, phase_of
from meshc.support.diagnostics import InternalError, MeshcError, Reproducer, fail
from meshc.verify import check_claims

_MAX_ELEMENTS = 200_000_000
_MAX_CORES = 1024
_DRAWS, _APART = 6, 1000
"""Traces that are drawn of a program which chooses something by its size, seeds so far apart; the
one in which what is chosen is farthest from what is not is taken, since rounding may turn what
nearly ties."""


@dataclass(frozen=True)
class Stage:
    """A copy of a module between two passes and what it gave on the trace of its phase."""

    module: Module
    outcome: Outcome


class Check(Instrument):
    """Runs the module before and after each pass on the same random inputs, but for passes that
    round, and checks every fact that it still claims. What differs is a fault of the pass:
    :class:`InternalError`, and ``bad-plugin`` of a pass of another package.

    Decode, if prefill has gone through the same passes, continues at each of them with the state
    that prefill left there, unless the host makes one of those of several prompts.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.compared = 0
        self.trace = Trace({}, ())
        self.stages: list[Stage] = []
        self.prefill: list[Stage] = []
        self._left: Module | None = None

    def before(self, step: Pass, module: Module) -> None:
        """Run a module that no pass has worked on. Raises ``check-too-large`` when that would take
        minutes."""
        _refuse_large(module)
        if module is not self._left:
            self._begin(module)

    def after(self, step: Pass, module: Module, seconds: float) -> None:
        _refuse_large(module)
        given = self.stages[-1]
        try:
            check_claims(module)
            if not told_alike(module, given.module) or step.ROUNDS:
                self._begin(module)
                self._left = module
                return
            self._run(module)
            wanted, got = given.outcome.results, self.stages[-1].outcome.results
            check_outcomes(given.module, module, wanted, got, self._earlier())
        except MeshcError as error:
            again = (f"{step.NAME}: {error}", str(step), print_module(given.module), True)
            if origin := origin_of(step):
                raise failed(step, origin, error, Reproducer(*again)) from error
            raise InternalError(*again) from error
        self._left = module
        self.compared += 1

    def _begin(self, module: Module) -> None:
        """Start with a phase: that of another model, or the decode of what was prefilled."""
        done = self.stages
        follows = bool(done) and (
            (phase_of(done[0].module), phase_of(module)) == ("prefill", "decode")
            and done[0].module.option("model", "") == module.option("model", "")
            and requests_of(done[0].module) == requests_of(module)
        )
        self.prefill, self.stages = done if follows else [], []
        read: dict[object, int] = {}
        for _, scalars in self.trace.steps:
            before, rows = scalars.get(POSITION, 0), scalars.get(RUN_TIME_ROWS, 0)
            if isinstance(before, int) and isinstance(rows, int):
                read[scalars.get(REQUEST)] = before + rows
        first = list(read.values()) if follows else 0
        widest, found = -1.0, list[Stage]()
        for seed in range(self.seed, self.seed + _DRAWS * _APART, _APART):
            trace = random_trace(module, seed, first=first)
            with watched_choices() as choices:
                stage = self._stage(module, trace)
            if choices.nearest > widest:
                widest, found, self.trace = choices.nearest, [stage], trace
            if widest == inf:
                break
        self.stages = found

    def _run(self, module: Module) -> None:
        self.stages.append(self._stage(module, self.trace))

    def _stage(self, module: Module, trace: Trace) -> Stage:
        number = len(self.stages)
        start = self.prefill[number].outcome.state if self.prefill else None
        return Stage(clone_module(module), run_from(module, trace, start))

    def _earlier(self) -> Module | None:
        """The prefill whose state the last two runs began with."""
        return self.prefill[len(self.stages) - 1].module if self.prefill else None


def _refuse_large(module: Module) -> None:
    elements = sum(prod(want.type.shape(module.dims)) for want in wanted_inputs(module))
    cores = module.mesh.cores if module.mesh else 1
    if elements > _MAX_ELEMENTS or cores > _MAX_CORES:
        fail(
            "check-too-large",
            f"--check runs the module on {cores} cores and {elements} elements of weights and "
            f"state; it takes at most {_MAX_CORES} and {_MAX_ELEMENTS}",
            help="check fewer layers (--layers), a shorter sequence (--seq) or a smaller mesh",
        )
