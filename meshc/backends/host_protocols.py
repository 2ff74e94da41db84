"""What runs programs, and what a loaded language model can: one face for every target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from meshc.backends.cuda.drafted import Drafter
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.host import Draw
from meshc.sim.machine.run_options import USUAL, Options
from meshc.sim.machine.trace import Trace
from meshc.support.diagnostics import Diagnostics

Array = NDArray[Any]
SIMULATING = frozenset({"cuda-cpu", "csl-sim"})
"""Those that stand in for another machine, whose time they do not take."""


OnToken = Callable[[int, int, Array], bool]
"""Called with the number of a prompt, a token behind it and its logits; whether it is the last."""
Choose = Callable[[int, Array], int]
"""The next token, for the number of a prompt and the logits behind it."""


class Host(Protocol):
    """A loaded language model."""

    def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        on_token: OnToken,
        stop: Collection[int],
        choose: Choose,
    ) -> list[list[int]]:
        """The ids of at most ``count`` tokens that continue each of ``prompts``, all at once, as
        ``choose`` takes them. One in ``stop`` is the last, and one of which ``on_token`` returns
        true."""


@runtime_checkable
class ChoosingHost(Host, Protocol):
    """A language model whose program may choose tokens itself."""

    @property
    def most_steps(self) -> int:
        """Steps of decoding of one launch at the most; 0 where the host chooses all tokens."""

    def generate_chosen(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        on_token: Callable[[int, int], bool],
        stop: Collection[int],
        steps: int,
        draw: Draw | None,
    ) -> list[list[int]]:
        """As :meth:`Host.generate_all`, in launches of so many ``steps``: the most likely tokens,
        or those that ``draw`` says; ``on_token`` is given no logits."""


@runtime_checkable
class DraftingHost(Host, Protocol):
    """A language model whose steps verify drafts."""

    @property
    def drafts(self) -> int:
        """Drafts of a request that a step verifies at the most."""

    def generate_drafted(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        on_token: OnToken,
        stop: Collection[int],
        choose: Choose,
        drafter: Drafter,
    ) -> list[list[int]]:
        """As :meth:`Host.generate_all`, by steps that verify what ``drafter`` guesses."""


@dataclass(frozen=True)
class Backend:
    """What runs a program; ``device`` is the open GPU of ``cuda``.

    ``remark`` says what was chosen where nobody asked for a backend and there was a choice.
    """

    name: str
    device: Device | None = None
    remark: str = ""


@dataclass(frozen=True)
class Loading:
    """The program in ``folder``, which is to run on ``backend`` with ``tensors`` as its weights;
    ``report`` is told where a GPU is another than the program is for. ``trace`` and ``simulated``
    are for the simulator of wafers; the folder ``packed`` keeps weights that are packed for GPUs.
    """

    folder: Path
    backend: Backend
    tensors: Mapping[str, Array]
    report: Diagnostics
    trace: Path | Trace | None = None
    packed: Path | None = None
    simulated: Options = USUAL
