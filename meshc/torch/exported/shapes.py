"""Ops of ATen that see tensors with other axes, cut them, or leave them as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from meshc.torch.exported.followed_dims import (
    FEATURES,
    REPEATED,
    Axis,
    Dim,
    extent,
    regrouped,
    settled,
)
from meshc.torch.exported.reading import Other, followed, product, whole
from meshc.torch.exported.values import Followed, Lanes, Product, Several, Stored, Tokens


def _same(input: Any, *options: Any) -> Any:
    if any(isinstance(one, torch.dtype) and not one.is_floating_point for one in options):
        raise Other("it makes whole numbers of a tensor")
    return input


def _dropout(input: Any, p: float, train: bool) -> Any:
    if train and p:
        raise Other("the program is one that trains")
    return input


def _reshape(input: Any, shape: Sequence[int]) -> Any:
    if isinstance(input, Tokens) and list(shape) in ([-1, input.shape[1]], [*input.shape]):
        return input
    given = followed(input)
    sizes = list(shape)
    if -1 in sizes:
        sizes[sizes.index(-1)] = prod(given.shape) // -prod(sizes)
    return given.seen_as(regrouped([dim for axis in given.axes for dim in axis], sizes))


def _flatten(input: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    shape = list(followed(input).shape)
    first, last = start_dim % len(shape), end_dim % len(shape)
    middle = prod(shape[first : last + 1])
    return _reshape(input, [*shape[:first], middle, *shape[last + 1 :]])


def _transpose(input: Any, dim0: int, dim1: int) -> Any:
    given = followed(input)
    axes = list(given.axes)
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return given.seen_as(tuple(axes))


def _permute(input: Any, dims: Sequence[int]) -> Any:
    given = followed(input)
    return given.seen_as(tuple(given.axes[dim] for dim in dims))


def _unsqueeze(input: Any, dim: int) -> Any:
    given = followed(input)
    axes = list(given.axes)
    axes.insert(dim % (len(axes) + 1), ())
    return given.seen_as(tuple(axes))


def _squeeze(input: Any, dim: int) -> Any:
    given = followed(input)
    axes = list(given.axes)
    if extent(axes[dim]) == 1:
        del axes[dim]
    return given.seen_as(tuple(axes))


def _expand(input: Any, size: Sequence[int], implicit: bool = False) -> Any:
    given = followed(input)
    if len(size) != len(given.axes):
        raise Other("it adds axes")
    axes: list[Axis] = []
    for axis, wanted in zip(given.axes, size, strict=True):
        if wanted in (-1, extent(axis)):
            axes.append(axis)
        elif axis:
            raise Other("it repeats an axis that has a meaning")
        else:
            axes.append((Dim(wanted, REPEATED),))
    return given.seen_as(tuple(axes))


def _slice(input: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    shape = input.shape if isinstance(input, Followed | Lanes | Tokens) else ()
    if not shape or step != 1:
        raise Other("it is not cut so")
    first, last, _ = slice(start, end).indices(shape[dim])
    if (first, last) == (0, shape[dim]):
        return input
    if dim not in (-1, len(shape) - 1) or isinstance(input, Tokens):
        raise Other("it takes a part of the rows or heads")
    return _cut(input, first, max(first, last))


def _chunk(input: Any, chunks: int, dim: int = 0) -> Any:
    size = -(-followed(input).shape[dim] // chunks)
    return _split(input, size, dim)


def _split(input: Any, split_size: Any, dim: int = 0) -> Any:
    length = followed(input).shape[dim]
    sizes = split_size
    if isinstance(split_size, int):
        sizes = [min(split_size, length - at) for at in range(0, length, split_size)]
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    pairs = zip([0, *ends], ends, strict=False)
    return Several(tuple(_slice(input, dim, first, last) for first, last in pairs))


def _cut(value: Followed | Lanes, first: int, last: int) -> Any:
    """Elements ``first`` to ``last`` of the last axis: of a product, one of fewer features."""
    if isinstance(value, Lanes):
        return Lanes(value.of, value.first + first, value.first + last, value.negative)
    if not isinstance(value, Product) or any(
        dim.role != FEATURES for dim in settled(value.axes[-1])
    ):
        return Lanes(whole(value), first, last)
    weight = Stored(value.weight.value[first:last], value.weight.names)
    bias = value.bias and Stored(value.bias.value[first:last], value.bias.names)
    return product(value.given, weight, bias, None)


SHAPES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(["to", "contiguous", "clone", "alias", "detach", "type_as", "_to_copy"], _same),
    "dropout": _dropout,
    "view": _reshape,
    "reshape": _reshape,
    "_unsafe_view": _reshape,
    "flatten": _flatten,
    "transpose": _transpose,
    "permute": _permute,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _expand,
    "slice": _slice,
    "chunk": _chunk,
    "split": _split,
    "split_with_sizes": _split,
}
"""What ops make of tensors that they see otherwise, or cut, by their names in ATen."""
