"""Progress of long work: on stderr, and only on a terminal. The only module that imports tqdm."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm

from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.passes.instruments import Instrument, phase_of


class Progress(Instrument):
    """One line that names what is being done; silent where stderr is no terminal."""

    def __init__(self, quiet: bool = False) -> None:
        self._line = tqdm(
            bar_format="{desc} [{elapsed}]",
            disable=quiet or not sys.stderr.isatty(),
            leave=False,
            file=sys.stderr,
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._line.close()

    def before(self, step: Pass, module: Module) -> None:
        self.say(f"{phase_of(module)} {step.NAME}".strip())

    def behind(self, work: str) -> None:
        self.say(f"{work}, which takes a minute or more on large meshes")

    def reading(self, name: str) -> None:
        """Called when the weight ``name`` is read."""
        self.say(f"reading {name}")

    def generated(self, count: int) -> None:
        """Called with the number of tokens so far."""
        self.say(f"{count} tokens")

    def runs(self, done: int, count: int) -> None:
        """Called with how many runs are done, and of how many."""
        self.say(f"{done} of {count} runs")

    def say(self, text: str) -> None:
        """Show ``text`` as what is being done."""
        self._line.set_description_str(text)
        self._line.update(1)
