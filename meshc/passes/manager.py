"""The pass manager: facts before, the pass, the verifier and the facts after, instruments around.

A mistake of the user leaves it as :class:`meshc.support.diagnostics.MeshcError`; anything else
that goes wrong inside a pass, bad IR and false claims included, is an :class:`InternalError` that
carries what is needed to see it again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.printer import print_module
from meshc.ir.verifier import verify_module
from meshc.passes.base import Pass
from meshc.passes.brought_passes import failed, origin_of
from meshc.passes.instruments import Instrument
from meshc.passes.registry import PASSES, pipeline_text
from meshc.support.blame import blamed
from meshc.support.diagnostics import (
    Diagnostics,
    InternalError,
    MeshcError,
    Reproducer,
    fail,
)
from meshc.verify import FACTS


class PassManager:
    """Runs ``passes`` in order; what they have to say is added to a report.

    ``instruments`` see the module before and after each pass. Where only the question is whether a
    program comes out that nobody will run, nothing needs to be ``verified``.
    """

    def __init__(
        self,
        passes: Sequence[Pass],
        instruments: Sequence[Instrument] = (),
        verified: bool = True,
    ) -> None:
        self.passes = tuple(passes)
        self.instruments = tuple(instruments)
        self.verified = verified

    def run(self, module: Module, report: Diagnostics | None = None) -> Module:
        """The module after all passes; ``module`` itself is edited or left behind.

        Raises :class:`MeshcError` for bad input, ``wrong-level`` and ``missing-fact`` among it, and
        for a pass of another package that breaks (``bad-plugin``), and :class:`InternalError` when
        any other pass does.
        """
        report = Diagnostics() if report is None else report
        if self.verified:
            verify_module(module)
        given = clone_module(module)
        for position, step in enumerate(self.passes):
            _check_ready(module, step)
            for instrument in self.instruments:
                instrument.before(step, module)
            start = time.perf_counter()
            try:
                module = _run(step, module, report, self.verified)
            except (MeshcError, MemoryError):
                raise
            except (Exception, SystemExit) as error:
                origin = origin_of(step)
                if isinstance(error, SystemExit) and not origin:
                    raise
                words = f"{step.NAME}: {_words(error)}"
                again = _seen_again(self.passes, position, given)
                if origin:
                    raise failed(step, origin, error, Reproducer(words, *again)) from error
                if blame := blamed(error, Reproducer(words, *again)):
                    raise blame from error
                raise InternalError(words, *again) from error
            seconds = time.perf_counter() - start
            for instrument in self.instruments:
                instrument.after(step, module, seconds)
        return module


def _seen_again(passes: Sequence[Pass], position: int, given: Module) -> tuple[str, str]:
    """The passes from ``position`` on and the text of the module in front of them, for which those
    before them are run once more: passes edit modules in place, and few ever break. Where they do
    not do again what they did, all passes and the text of what was ``given``."""
    module = clone_module(given)
    try:
        for step in passes[:position]:
            module = _run(step, module, Diagnostics())
    except (Exception, SystemExit):
        return pipeline_text(passes), print_module(given)
    return pipeline_text(passes[position:]), print_module(module)


class _BrokenPass(Exception):
    """A pass left something that is not what it promised."""


def _run(step: Pass, module: Module, report: Diagnostics, verified: bool = True) -> Module:
    """Run one pass, verify what it left where that is asked for, and bring the facts up to date."""
    held = set(module.holds)
    result = step.run(module, report)
    if not isinstance(result, Module):
        raise _BrokenPass(f"{step.NAME} returned {type(result).__name__}, not a module")
    if verified:
        _promised(f"{step.NAME} left IR that does not verify", verify_module, result)
    for fact in sorted(step.ESTABLISHES if verified else ()):
        claim = f"{step.NAME} claims '{fact}', which does not hold"
        _promised(claim, FACTS[fact].check, result)
    kept = {f for f in held if result.level in FACTS[f].levels}
    result.holds = (kept - step.INVALIDATES) | step.ESTABLISHES
    return result


def _promised(claim: str, check: Callable[[Module], None], module: Module) -> None:
    """Run ``check``; its finding is a fault of the pass, not of the input."""
    try:
        check(module)
    except MeshcError as error:
        raise _BrokenPass(f"{claim}\n{error}") from error


def _check_ready(module: Module, step: Pass) -> None:
    """Level and facts that ``step`` needs; says which passes would provide what is missing."""
    if module.level not in step.LEVELS:
        wanted = " or ".join(step.LEVELS)
        fail(
            "wrong-level",
            f"{step.NAME} works on the {wanted} level; the module is at the {module.level} level",
            help=f"run {_lowering_to(step.LEVELS)} first" if module.level == "graph" else None,
        )
    missing = sorted(step.REQUIRES - module.holds)
    if missing:
        notes = [f"'{fact}' is established by {_providers(fact)}" for fact in missing]
        fail(
            "missing-fact",
            f"{step.NAME} needs {', '.join(missing)}, which module '{module.name}' does not hold",
            notes=notes,
            help="add the pass to the pipeline before this one",
        )


def _providers(fact: str) -> str:
    """Names of the passes that establish ``fact``."""
    return ", ".join(p.NAME for p in PASSES if fact in p.ESTABLISHES) or "no pass"


def _lowering_to(levels: Sequence[str]) -> str:
    if "task" in levels:
        return "expand-tasks"
    return "partition, then expand-programs" if "mesh" not in levels else "partition"


def _words(error: BaseException) -> str:
    if isinstance(error, _BrokenPass):
        return str(error)
    return f"{type(error).__name__}: {error}"
