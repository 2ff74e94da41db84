"""Instructions of a warp that decode and multiply a block of a matrix that stays quantised.

    python benchmarks/code_instructions.py

A kernel that multiplies one row group is compiled for each format and both types of vectors, and
the instructions of the loop over the blocks of a tile, or over the groups of a block, are counted
in its machine code, for one vector: those of a group of the format, and of 16 x 16 codes of it,
where they are multiplied as floats of either type, and where they can be as whole numbers.
``cost/tasks/tile_times.py`` has what the event model makes of that. Needs NVRTC or nvcc, and
nvdisasm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from measuring import table

from meshc.analysis.tasks.tiles import multiplied_whole
from meshc.backends.cuda.tasks.coded import block_type
from meshc.backends.cuda.toolchain.toolkit import compile_cubin, disassemble
from meshc.ir.codes import CODE_FORMATS, CodeFormat

_KERNEL = """#include "mc.cuh"
typedef mc::{dtype} T;
extern "C" __global__ void __launch_bounds__(288, 1)
    product(float* y, int count, int tile_blocks) {{
    unsigned char* arena = mc::arena();
    mc::Ring<9> ring(arena, arena + 1024, 16384);
    int item = 0, turn = 0;
    const int me = mc::thread();
    const T* const columns = (const T*)(arena + 160000);
    float* const parts = (float*)(arena + 200000);
    y[me] = mc::{call}8, 1>(ring, item, columns, parts, turn, count, tile_blocks, me);
}}
MC_EXPORT(product)
"""
_CODE = re.compile(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);")
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_BACK = re.compile(r"\bBRA\b.*?(\.L_x_\d+)")


@dataclass(frozen=True)
class Count:
    """Instructions for ``blocks`` blocks of codes of ``fragments`` of 16 x 16 each."""

    instructions: int
    blocks: int
    fragments: int

    @property
    def of_block(self) -> float:
        """Of one block."""
        return self.instructions / self.blocks

    @property
    def of_fragment(self) -> float:
        """Of 16 x 16 codes."""
        return self.of_block / self.fragments


def counted(form: CodeFormat | None, dtype: str, whole: bool = False) -> Count:
    """Those of a format, or of numbers of 16 bits, multiplied by a vector of ``dtype``, or as
    ``whole`` numbers. Raises BuildError, and MeshcError ``cuda-toolkit``."""
    call = "multiply_row_group<"
    if form is not None:
        kind = block_type(form)
        call = f"multiply_coded_group<{f'mc::Whole<{kind}>' if whole else kind}, "
    code = disassemble(compile_cubin(_KERNEL.format(dtype=dtype, call=call)))
    loops = ([*loop.values()] for loop in loops_of(code))
    loop = min(filter(_products, loops), key=lambda one: len(one) / _products(one))
    products = _products(loop)
    fragments = 1 if form is None else form.group // 16
    of_block = 1 if form is None else fragments + _more_products(form, dtype)
    if whole:
        of_block = fragments // 2
    assert products % of_block == 0
    return Count(len(loop), products // of_block, fragments)


def _products(loop: list[str]) -> int:
    return sum("HMMA" in line or "IMMA" in line for line in loop)


def _more_products(form: CodeFormat, dtype: str) -> int:
    """How many products a group has besides those of its codes: of each fragment one with what is
    taken off, or one with ones of four fragments, whose columns have room beside each other."""
    fragments = form.group // 16
    if form.least is not None:
        return -(-fragments // 4)
    taken = form.whole and (form.codes.bits < 8 if dtype == "bf16" else form.zero > 0)
    return fragments if taken else 0


def loops_of(code: str) -> Iterator[dict[int, str]]:
    """The instructions of each loop by their place, from a label to a jump back to it."""
    lines: list[tuple[int, str]] = []
    labels: dict[str, int] = {}
    named: list[str] = []
    for line in code.splitlines():
        if label := _LABEL.match(line):
            named.append(label[1])
        elif found := _CODE.search(line):
            at = int(found[1], 16)
            labels |= dict.fromkeys(named, at)
            lines.append((at, found[2]))
            named = []
    for end, text in lines:
        back = _BACK.search(text)
        if back and labels.get(back[1], end + 1) <= end:
            yield {at: one for at, one in lines if labels[back[1]] <= at <= end}


def main() -> None:
    """Print the table."""
    rows = []
    for form in (None, *CODE_FORMATS.values()):
        counts: list[Count | None] = [counted(form, dtype) for dtype in ("f16", "bf16")]
        whole = form and multiplied_whole(form.codes, form.group, form.span, 1, form.span)
        counts.append(counted(form, "f16", True) if whole else None)
        own = [f"{c.of_block:.1f}" if form and c else "" for c in counts]
        of_fragment = [f"{c.of_fragment:.1f}" if c else "" for c in counts]
        rows.append(["16 bits" if form is None else form.name, *own, *of_fragment])
    heads = ["format", "a group, f16", "bf16", "whole", "16 x 16, f16", "bf16", "whole"]
    print(table(heads, rows))


if __name__ == "__main__":
    main()
