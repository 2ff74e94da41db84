"""What passes make of the phases of a model before these have agreed on what they share.

A decode step chooses the policy of the caches that prefill fills, and both phases have as many
regions as the larger one needs. To find this out passes are run that compiling runs anyway: here
they are run once, and the compile goes on behind them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.passes.manager import PassManager
from meshc.support.diagnostics import Diagnostic, Diagnostics


class _Run(NamedTuple):
    """The module that passes left and what they had to say."""

    module: Module
    messages: tuple[Diagnostic, ...] = ()


class Trials:
    """Runs of passes on the modules ``given`` by phase, which stay as they are."""

    def __init__(self, given: Mapping[str, Module]) -> None:
        self._given = given
        self._runs: dict[tuple[str, tuple[Pass, ...]], _Run] = {}

    def run(self, phase: str, passes: Sequence[Pass]) -> Module:
        """The module of ``phase`` behind ``passes``, only to be read. Raises what they raise."""
        count, start = self._longest(phase, passes)
        report = Diagnostics()
        module = PassManager(passes[count:]).run(clone_module(start.module), report)
        messages = (*start.messages, *report.messages)
        self._runs[phase, tuple(passes)] = _Run(module, messages)
        return module

    def continued(
        self, phase: str, passes: Sequence[Pass], report: Diagnostics
    ) -> tuple[Module, Sequence[Pass]]:
        """A copy of the module of ``phase`` behind the first of ``passes``, as many as were run
        before, and those that are left. What the former had to say is added to ``report``."""
        count, start = self._longest(phase, passes)
        for message in start.messages:
            report.add(message)
        return clone_module(start.module), passes[count:]

    def _longest(self, phase: str, passes: Sequence[Pass]) -> tuple[int, _Run]:
        """The longest run so far of the first of ``passes``, and of how many."""
        for count in range(len(passes), 0, -1):
            found = self._runs.get((phase, tuple(passes[:count])))
            if found is not None:
                return count, found
        return 0, _Run(self._given[phase])
