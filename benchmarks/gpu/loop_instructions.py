"""Instructions of the loops over tiles in compiled kernels: what ratios of times per tile rest on.

    python benchmarks/gpu/loop_instructions.py

Compiles the step of models with one and with four query heads for a key head; disassembles it and
counts the instructions of each loop over tiles that a warp goes through, and of the loop over tasks
around it less one tile. Needs a CUDA compiler and nvdisasm, no GPU. ``benchmarks/step_fit.py`` has
what it printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import meshc
from meshc.backends.cuda.toolchain.toolkit import compile_cubin, disassemble

MODELS = ("llama-2-7b", "llama-3-8b")
LANES = 128
"""Of their heads."""
_LABEL = re.compile(r"(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?);")
_BACK = re.compile(r"BRA.*?`\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Loop:
    """Instructions from the first to the last one of a loop."""

    begin: int
    end: int
    code: Sequence[str]

    def has(self, opcode: str) -> bool:
        return any(opcode in line for line in self.code)

    def inside(self, other: Loop) -> bool:
        return other.begin <= self.begin and self.end <= other.end and self != other


def loops(assembly: str) -> list[Loop]:
    """The loops of a kernel, shortest first: from where a branch leads back to, to the branch."""
    code: list[str] = []
    labels: dict[str, int] = {}
    found: list[Loop] = []
    for line in assembly.splitlines():
        text = line.strip()
        if match := _LABEL.match(text):
            labels[match[1]] = len(code)
        elif match := _INSTRUCTION.match(text):
            code.append(match[1])
            back = _BACK.search(match[1])
            if back and back[1] in labels:
                begin = labels[back[1]]
                found.append(Loop(begin, len(code), code[begin:]))
    return sorted(found, key=lambda loop: len(loop.code))


def around(inner: Loop, every: Sequence[Loop]) -> Loop | None:
    """The next loop around ``inner``."""
    return next((loop for loop in every if inner.inside(loop)), None)


def products(every: Sequence[Loop]) -> tuple[int, int]:
    """Median instructions of a tile and of what a task of a product has beside its tiles."""
    waiting = [loop for loop in every if loop.has("HMMA") and loop.has("SYNCS")]
    tiles = [one for one in waiting if not any(other.inside(one) for other in waiting)]
    pairs = [(tile, task) for tile in tiles if (task := around(tile, every))]
    rest = median(len(task.code) - len(tile.code) for tile, task in pairs)
    return round(median(len(tile.code) for tile, _ in pairs)), round(rest)


def attention(every: Sequence[Loop]) -> tuple[int, int, int]:
    """Instructions of sixteen tokens, which one warp of a block attends; of a tile beside them; and
    of what a task has beside its tiles. Lanes of scores are taken thirty-two at a time."""
    scores = [x for x in every if all(map(x.has, ("MUFU", "SHFL", "HMMA"))) and not x.has("SYNCS")]
    tokens = scores[0]
    lanes = next(loop for loop in every if loop.inside(tokens))
    tile = around(tokens, every)
    assert tile is not None
    task = around(tile, every)
    assert task is not None
    sixteen = len(tokens.code) + (LANES // 32 - 1) * len(lanes.code)
    return sixteen, len(tile.code) - len(tokens.code), len(task.code) - len(tile.code)


def main() -> None:
    """Print the counts."""
    for model in MODELS:
        options = {"phase": "decode", "seq": 4097, "dtype": "f16", "device": "h200"}
        made = meshc.compile(model, target="cuda", **options)
        every = loops(disassemble(compile_cubin(made.files["step.cu"])))
        tile, task = products(every)
        print(f"{model}: product, 8 columns: a tile {tile}, a task {task}")
        tokens, tile, task = attention(every)
        print(f"{model}: attention: 16 tokens {tokens}, a tile beside them {tile}, a task {task}")


if __name__ == "__main__":
    main()
