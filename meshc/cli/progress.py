"""Progress of long work: on stderr, and only on a terminal. The only module that imports tqdm."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

from tqdm import tqdm

from meshc.ir.module import Module
from meshc.passes.base import Pass
from meshc.passes.instruments import Instrument, phase_of

_MOVES_S = 1.0


class Progress(Instrument):
    """One line that names what is being done; silent where stderr is no terminal. While programs
    are written, which says nothing on the way, its time goes on by itself."""

    def __init__(self, quiet: bool = False) -> None:
        self._line = tqdm(
            bar_format="{desc} [{elapsed}]",
            disable=quiet or not sys.stderr.isatty(),
            leave=False,
            file=sys.stderr,
        )
        self._mover: threading.Thread | None = None
        self._still = threading.Event()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.written()
        self._line.close()

    def before(self, step: Pass, module: Module) -> None:
        self.say(f"{phase_of(module)} {step.NAME}".strip())

    def behind(self, work: str) -> None:
        self.say(f"{work}, which takes a minute or more on large meshes")
        if self._mover is None and not self._line.disable:
            self._mover = threading.Thread(target=self._move, name="progress", daemon=True)
            self._mover.start()

    def written(self) -> None:
        if self._mover is not None:
            self._still.set()
            self._mover.join()
            self._mover, self._still = None, threading.Event()

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

    def _move(self) -> None:
        while not self._still.wait(_MOVES_S):
            self._line.refresh()
