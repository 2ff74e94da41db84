"""Launches as data: a kernel and its arguments by name, in the layers of a stage and of tokens."""

from __future__ import annotations

from dataclasses import dataclass

RANK, RANKS = "@rank", "@ranks"
"""Arguments of a launch: which of the ranks a GPU is, and how many there are."""
OF_ALL, OF_EACH = "@all", "@each"
"""Behind the name of symmetric memory: the multicast address that stands for it on all GPUs, and
where it lies on each of them."""


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments: names of buffers and weights, or integers.

    A name with ``[]`` behind it stands for the part of the layer that is computed, counted within
    its stage, with ``[+1]`` for that of the next layer, with ``[3]`` for row 3 of its first dim,
    with ``[t]`` for the row of a token of a chunk. An empty name is no memory, address 0. What
    begins with ``@`` or has it behind a name is the place of a rank among others (:data:`RANK`,
    :data:`OF_ALL`).
    """

    kernel: str
    arguments: tuple[str | int, ...]

    @property
    def by_token(self) -> bool:
        """Whether it is launched for each token of a chunk."""
        return any(str(a).endswith("[t]") for a in self.arguments)

    def of_token(self, token: int) -> Launch:
        """The launch for this token of a chunk, whose rows its arguments name."""

        def of(argument: str | int) -> str | int:
            row = isinstance(argument, str) and argument.endswith("[t]")
            return f"{str(argument).removesuffix('[t]')}[{token}]" if row else argument

        return Launch(self.kernel, tuple(map(of, self.arguments)))

    def of_layer(self, layer: int, stage: Stage) -> Launch:
        """The launch in this layer of ``stage``, with what it takes of the next layer by name."""

        def named(argument: str | int) -> str | int:
            if not isinstance(argument, str) or not argument.endswith("[+1]"):
                return argument
            last = layer + 1 == stage.layers
            return stage.ahead if last else argument.replace("[+1]", f"[{layer + 1}]")

        return Launch(self.kernel, tuple(map(named, self.arguments)))


@dataclass(frozen=True)
class Stage:
    """``layers`` layers of one kind, which have weights and caches of their own: the launches of
    each.

    ``ahead`` is what an argument with ``[+1]`` stands for in the last layer: the part of the first
    layer of the next stage, or no memory.
    """

    layers: int
    launches: tuple[Launch, ...]
    ahead: str = ""


def part_of(argument: str, layer: int) -> tuple[str, int | None]:
    """What an argument names, and which part of its first dim, None for the whole."""
    name, bracket, part = argument.removesuffix("]").partition("[")
    if not bracket:
        return name, None
    return name, int(part) if part else layer
