"""Collectives of several GPUs over rows of tokens, with what is done to a row on its way.

Row r belongs to GPU r mod gpus, so that any number of rows is dealt evenly, also fewer than GPUs.
A GPU reads its rows once: summed by the switch as they are loaded (``multimem``, NVLink SHARP), or
from every peer in turn (``peers``). Residual sum and norm happen in registers, and one store gives
the row to all. TokenWeave (Gond and others, 2025, Figure 18) has the kernel ``all_reduce_norm``;
the others are the same text with parts left out. A few blocks suffice, since rows wait for links
and not for arithmetic.

Operands, in order: what is read, ``residual`` and ``gain`` of a norm, what is written,
``signals``, number of rows, rank, number of GPUs. Rows are ``pitch`` values apart; those behind
``hidden`` are not looked at. Of a ``chunk`` of a prompt the residual has room for all rows,
and rows are those from ``first`` on (-1: the last), ``most`` at most, of as many as ``count`` says:
operands in place of the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshc.backends.cuda.kernels.arena import Arena
from meshc.backends.cuda.kernels.chunk_tiles import DoesNotFit, literal
from meshc.backends.templates import render

FORMS = {
    "all_reduce_norm": "reduced, added to the residual, normalised, given to all",
    "reduce_scatter_norm": "reduced, added to the residual, normalised, kept by their GPU",
    "all_reduce": "reduced, given to all",
    "reduce_scatter": "reduced, kept by their GPU",
    "all_gather": "given by their GPU to all",
}
"""What becomes of rows."""
TRANSPORTS = ("multimem", "peers")
DTYPES = {"f16": 2, "bf16": 2, "f32": 4}
LAYOUTS = ("columns", "f32")
_SUMMED = ("f16", "bf16")
MOST_GPUS = 16
BLOCKS = range(1, 33)
_WORD_BYTES, _EIGHT = 16, 8
_MOST_THREADS = 512
_MOST_WORDS = 8  # of a thread: more would not stay in registers


@dataclass(frozen=True)
class Collective:
    """Rows of ``hidden`` values; ``epsilon`` is that of a norm. Sums are of 16-bit types. Of rows
    of a ``chunk`` of so many tokens what is given to all has a ``layout`` of its own: columns as
    products of a chunk read them, or rows of f32."""

    form: str
    hidden: int
    dtype: str
    transport: str = "multimem"
    epsilon: float = 0.0
    chunk: int = 0
    layout: str = ""

    @property
    def pitch(self) -> int:
        """Values from a row to the next: whole words of 16 bytes."""
        lanes = _WORD_BYTES // DTYPES[self.dtype]
        return -(-self.hidden // lanes) * lanes

    @property
    def reduces(self) -> bool:
        """Whether rows are sums of what all GPUs have."""
        return self.form != "all_gather"

    @property
    def norms(self) -> bool:
        """Whether a residual is added and the sum normalised."""
        return self.form.endswith("_norm")

    @property
    def spreads(self) -> bool:
        """Whether all GPUs get all rows."""
        return self.form.startswith("all_")


@dataclass(frozen=True)
class CollectivePlan:
    """How ``blocks`` blocks of each GPU, one on a multiprocessor, do it."""

    shape: Collective
    blocks: int
    threads: int
    arena: Arena

    def signals(self, gpus: int) -> int:
        """Words that each of ``gpus`` has for signals: of each block, from each sender."""
        return self.blocks * gpus


def own_rows(rows: int, rank: int, gpus: int) -> int:
    """How many of ``rows`` are those of GPU ``rank`` of ``gpus``."""
    return len(range(rank, rows, gpus))


def link_bytes(shape: Collective, rows: int, gpus: int) -> int:
    """Bytes that all GPUs together load from others and store to them; what the switch adds up or
    spreads passes the links of its GPU once."""
    others = (1 if shape.transport == "multimem" else gpus - 1) if gpus > 1 else 0
    row_bytes = shape.pitch * DTYPES[shape.dtype]
    given_bytes = shape.pitch * DTYPES["f32"] if shape.layout == "f32" else row_bytes
    if shape.layout == "columns":
        given_bytes = -(-row_bytes // (2 * _WORD_BYTES)) * 2 * _WORD_BYTES
    return rows * others * (row_bytes * shape.reduces + given_bytes * shape.spreads)


def plan(shape: Collective, blocks: int = 8) -> CollectivePlan:
    """The division of a row over the threads of a block. Raises DoesNotFit."""
    _check(shape, blocks)
    words = shape.pitch * DTYPES[shape.dtype] // _WORD_BYTES
    share = -(-words // -(-words // _MOST_THREADS))
    unit = 32 if share <= 128 else 128
    threads = -(-share // unit) * unit
    if words > threads * _MOST_WORDS:
        most = _MOST_THREADS * _MOST_WORDS * _WORD_BYTES // DTYPES[shape.dtype]
        raise DoesNotFit(f"rows of {shape.hidden} values, of {most} that registers hold")
    arena = Arena()
    if shape.norms:
        arena.add("SUMS", 2 * threads // 32 * 4, "of squares, of the warps, for two rows in turn")
    return CollectivePlan(shape, blocks, threads, arena)


def _check(shape: Collective, blocks: int) -> None:
    for name, value, known in (
        ("form", shape.form, FORMS),
        ("transport", shape.transport, TRANSPORTS),
        ("type", shape.dtype, DTYPES),
    ):
        if value not in known:
            raise DoesNotFit(f"no {name} '{value}' of a collective, but {', '.join(known)}")
    if shape.chunk or shape.layout:
        if shape.form != "all_reduce_norm" or shape.dtype not in _SUMMED:
            raise DoesNotFit("a collective of a chunk adds up rows of 16 bits and normalises them")
        if shape.layout not in LAYOUTS or shape.chunk < 1 or shape.hidden % _EIGHT:
            raise DoesNotFit(
                f"rows of {shape.hidden} values of {shape.chunk} tokens are not given to all as "
                f"'{shape.layout}'"
            )
    elif shape.reduces and DTYPES[shape.dtype] != 2:
        raise DoesNotFit(f"sums of {shape.dtype}: partial sums are of f16 or bf16")
    if shape.hidden < 1:
        raise DoesNotFit(f"rows of {shape.hidden} values")
    if blocks not in BLOCKS:
        raise DoesNotFit(f"{blocks} blocks of a collective, of 1 to {BLOCKS[-1]}")


def text(chosen: CollectivePlan, name: str) -> str:
    """The kernel called ``name``."""
    shape = chosen.shape
    return render(
        "meshc.backends.cuda.kernels.collective",
        "collective.cu.jinja",
        kernel=name,
        title=FORMS[shape.form],
        dtype={"f32": "float"}.get(shape.dtype, f"mc::{shape.dtype}"),
        stream_row="row" if shape.chunk else "own_row",
        uses_own_row=not shape.chunk,
        chunk=shape.chunk,
        layout=shape.layout,
        given="float" if shape.layout == "f32" else "T",
        given_outside="float" if shape.layout == "f32" else f"{name}_::T",
        hidden=shape.hidden,
        pitch=shape.pitch,
        threads=chosen.threads,
        multimem=shape.transport == "multimem",
        reduces=shape.reduces,
        norms=shape.norms,
        spreads=shape.spreads,
        epsilon=literal(shape.epsilon),
        padded=shape.pitch > shape.hidden,
        shared=chosen.arena.parts,
        shared_bytes=chosen.arena.bytes,
    )
