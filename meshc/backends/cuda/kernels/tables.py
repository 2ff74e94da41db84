"""The tables of the vocabulary: of the look-up and of the logits."""

from __future__ import annotations

from meshc.backends.cuda.gathering import Step


def add_table(step: Step, source: str, shape: tuple[int, int], by_rows: bool) -> str:
    """The argument for the table ``source`` of ``shape`` (words, hidden), which is given by its
    rows or turned around; one that is tied to another is kept once."""
    pack = "plain" if by_rows else "transposed"
    for name, weight in step.weights.items():
        if weight.sources == (source,) and weight.pack == pack:
            return name
    name = "logits_of" if "embedding" in step.weights else "embedding"
    return step.add_matrix(name, pack, (source,), shape)
