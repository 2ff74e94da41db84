"""Whether the head of a model that says its embedding is tied is the embedding."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from meshc.frontend.checkpoints.tensor_source import Part, TensorSource
from meshc.frontend.families import Family

HEAD = "lm_head"
_ROWS = 1024
"""Rows that are compared at a time, behind the first one, by which other heads mostly differ."""


def stored_head(source: TensorSource, family: Family) -> str:
    """The name under which ``source``, of a family whose head may be tied, stores a head; empty
    where it stores none."""
    head = family.params.get(HEAD)
    return head.hf if head is not None and head.tied and head.hf in source.tensors else ""


def stores_own_head(source: TensorSource, family: Family) -> bool:
    """Whether ``source`` stores a head that is not its embedding.

    Hugging Face transformers, from release 5 on, ties the two only where they are equal
    (``tie_weights`` in ``modeling_utils.py``). Raises what reading tensors does.
    """
    name = stored_head(source, family)
    if not name:
        return False
    table = family.params[family.params[HEAD].tied].hf
    table = table if table in source.tensors else table.removeprefix(family.prefix)
    if table not in source.tensors:
        return False
    head, other = source.tensors[name], source.tensors[table]
    if head.shape != other.shape or not (head.readable and other.readable):
        return True
    rows = head.shape[0]
    parts = (Part(0, *ends) for ends in pairwise((0, *range(1, rows, _ROWS), rows)))
    return not all(
        np.array_equal(source.read(name, part), source.read(table, part)) for part in parts
    )
