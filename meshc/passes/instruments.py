"""Instruments: what may look at a module around each pass without changing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from meshc.ir.module import Module
from meshc.ir.ops.tile import Compute
from meshc.ir.printer import print_module
from meshc.passes.base import Pass


class Instrument:
    """Base of all instruments; all hooks do nothing."""

    def before(self, step: Pass, module: Module) -> None:
        """Called with the module that ``step`` is about to work on."""

    def after(self, step: Pass, module: Module, seconds: float) -> None:
        """Called with what ``step`` left, verified and with its facts, and the time it took."""

    def behind(self, work: str) -> None:
        """Called with the ``work`` that begins when all passes are done."""

    def written(self) -> None:
        """Called when that work is done."""


@dataclass(frozen=True)
class PassTime:
    """Wall-clock seconds of one pass of one phase."""

    phase: str
    pass_text: str
    seconds: float


class Timing(Instrument):
    """Collects the time of each pass, its verification included."""

    def __init__(self) -> None:
        self.times: list[PassTime] = []

    def after(self, step: Pass, module: Module, seconds: float) -> None:
        self.times.append(PassTime(phase_of(module), str(step), seconds))

    def table(self) -> str:
        """One line per pass and the total."""
        rows = [(f"{t.phase} {t.pass_text}".strip(), t.seconds) for t in self.times]
        rows.append(("total", sum(t.seconds for t in self.times)))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {seconds:9.3f} s" for name, seconds in rows)


class Statistics(Instrument):
    """Counts ops, buffers and channels after each pass."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def after(self, step: Pass, module: Module, seconds: float) -> None:
        counts = Counter(_op_name(op) for op in module.walk())
        most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:6]
        shown = ", ".join(f"{name} {count}" for name, count in most)
        parts = f"{len(module.buffers)} buffers, {len(module.channels)} channels"
        level = f"{module.level}: {counts.total()} ops, {parts}"
        self.lines.append(f"{phase_of(module)} {step}: {level}; {shown}".strip())

    def table(self) -> str:
        """One line per pass."""
        return "\n".join(self.lines)


class PrintAfter(Instrument):
    """Hands the text of the module after each pass in ``names`` (None: every pass) to ``write``."""

    def __init__(self, write: Callable[[str], None], names: frozenset[str] | None = None) -> None:
        self.write = write
        self.names = names

    def after(self, step: Pass, module: Module, seconds: float) -> None:
        if self.names is None or step.NAME in self.names:
            phase = phase_of(module)
            head = f"# after {step}" + (f" ({phase})" if phase else "")
            self.write(f"{head}\n{print_module(module)}")


def phase_of(module: Module) -> str:
    """The phase a module is for, or an empty text."""
    return str(module.option("phase", ""))


def _op_name(op: object) -> str:
    return f"tile.{op.kernel}" if isinstance(op, Compute) else str(getattr(op, "NAME", ""))
