"""How fast weights that stay quantised are packed for a GPU, by format.

    python benchmarks/packing_codes.py [--json] [--rows 8192] [--repeats 5] [FORMAT ..]

Packs matrices of random codes, which lie in memory as readers of checkpoints give them: a byte for
each code, f32 for each scale. One core does so by processor time, in turn with a copy of the packed
bytes and with one of the bytes that are read.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

import numpy as np
from measuring import interleaved, table

from meshc.backends.cuda.packing.codes import CodedRows
from meshc.backends.cuda.packing.matrix_rows import Rows
from meshc.ir.codes import CODE_FORMATS, CodeFormat
from meshc.ir.stored import E2M1, E4M3
from meshc.ir.types import DType

WIDTH = 4096
PIECE = 1 << 19
"""Words that are packed at a time, as for a program."""
NO_NUMBER = 0x7F
FLOATS = {DType.E4M3: E4M3, DType.E2M1: E2M1}


@dataclass(frozen=True)
class Packing:
    """GB in a second by one core: of packed bytes, of a copy of these, of the bytes that are read,
    and of a copy of those."""

    format: str
    packed: float
    copy: float
    read: float
    copy_of_read: float


def drawn(form: CodeFormat, count: int) -> CodedRows:
    """So many rows of random codes, every other one of another matrix."""
    rng, of = np.random.default_rng(1), np.arange(count) % 2
    at = np.arange(count) // 2

    def rows(values: np.ndarray) -> Rows:
        return Rows([values[: count // 2], values[count // 2 :]], of, at)

    codes = rng.integers(0, 1 << min(form.codes.bits, 8), (count, WIDTH)).astype(np.uint8)
    if form.codes is DType.E4M3:
        codes[codes & NO_NUMBER == NO_NUMBER] = 0
    numbers = [
        rng.integers(0, 60, (count, WIDTH // form.elements(part))).astype(np.float32)
        for part in form.parts
    ]
    held = rows(codes.view(FLOATS.get(form.codes, codes.dtype)))
    return CodedRows(form, held, [*map(rows, numbers)], "bf16")


def packing(form: CodeFormat, count: int, repeats: int) -> Packing:
    """How fast so many rows are packed."""
    coded = drawn(form, count)
    result, other = np.ones((2, coded.words), np.uint16)
    read = sum(m.nbytes for rows in (coded.codes, *coded.numbers) for m in rows.matrices)
    source, target = np.ones((2, read // 2), np.uint16)

    def pack() -> None:
        at = 0
        for part in coded.parts(PIECE):
            part.fill(result[at : at + part.words])
            at += part.words

    tasks = pack, lambda: np.copyto(result, other), lambda: np.copyto(target, source)
    own, copied, as_read = (one.cpu_median for one in interleaved(tasks, repeats))
    sizes = (result.nbytes, own), (result.nbytes, copied), (read, own), (read, as_read)
    return Packing(form.name, *(size / 1e9 / seconds for size, seconds in sizes))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("formats", nargs="*", metavar="FORMAT", default=sorted(CODE_FORMATS))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    found = [packing(CODE_FORMATS[n], options.rows, options.repeats) for n in options.formats]
    if options.json:
        print(json.dumps([asdict(one) for one in found]))
        return
    header = ("format", "packed GB/s", "copy", "of it", "read GB/s", "copy", "of it")
    rows = [
        (
            *(p.format, f"{p.packed:.1f}", f"{p.copy:.1f}", f"{p.packed / p.copy:.2f}"),
            *(f"{p.read:.1f}", f"{p.copy_of_read:.1f}", f"{p.read / p.copy_of_read:.2f}"),
        )
        for p in found
    ]
    print(table(header, rows))


if __name__ == "__main__":
    main()
