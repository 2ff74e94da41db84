"""The tables of the vocabulary: of the look-up and of the logits."""

from __future__ import annotations

from meshc.backends.cuda.chunk import Chunk


def add_table(chunk: Chunk, source: str, shape: tuple[int, int], by_rows: bool) -> str:
    """The argument for the table ``source`` of ``shape`` (words, hidden), which is given by its
    rows or turned around; one that is tied to another is kept once."""
    pack = "plain" if by_rows else "transposed"
    for name, weight in chunk.weights.items():
        if weight.sources == (source,) and weight.pack == pack:
            return name
    name = "logits_of" if "embedding" in chunk.weights else "embedding"
    return chunk.add_matrix(name, pack, (source,), shape)
