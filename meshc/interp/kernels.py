"""What each microkernel computes on one core, as pure functions of arrays.

A kernel gets the present contents of its first operand's view, the other operands and its
parameters, and returns the new contents of the first. Arithmetic is float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshc.interp import draws, formulas, gating
from meshc.interp.named import Array
from meshc.interp.rounding import coded_rows
from meshc.ir.brought_functions import BROUGHT

Params = Mapping[str, Any]
Kernel = Callable[[Array, Sequence[Array], Params], Array]

MICROKERNELS: dict[str, Kernel] = {}


def microkernel(function: Kernel) -> Kernel:
    """Decorator: register a kernel under its function's name without the leading underscore."""
    MICROKERNELS[function.__name__.removeprefix("_")] = function
    return function


def _leading(small: Array, large: Array) -> Array:
    """``small`` repeated over the trailing dims of ``large`` that it lacks."""
    if small.shape != large.shape[: small.ndim]:
        raise ValueError(f"{list(small.shape)} does not lead {list(large.shape)}")
    return small.reshape(small.shape + (1,) * (large.ndim - small.ndim))


def _trailing_axes(out: Array, operand: Array) -> tuple[int, ...]:
    """The dims of ``operand`` beyond the rank of ``out``: those a reduction sums away."""
    if out.ndim >= operand.ndim:
        raise ValueError(f"nothing to reduce from {list(operand.shape)} to {list(out.shape)}")
    return tuple(range(out.ndim, operand.ndim))


@microkernel
def _fill(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return np.full_like(out, params["value"])


@microkernel
def _copy(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return operands[0]


@microkernel
def _add(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return np.asarray(operands[0] + operands[1])


@microkernel
def _mul(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return np.asarray(operands[0] * operands[1])


@microkernel
def _div(out: Array, operands: Sequence[Array], params: Params) -> Array:
    a, b = operands
    return np.asarray(a / _leading(b, a))


@microkernel
def _scale(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return np.asarray(operands[0] * params["factor"])


def _function(formula: Callable[..., Array]) -> Kernel:
    def computed(out: Array, operands: Sequence[Array], params: Params) -> Array:
        return formula(operands[0], **params)

    return computed


MICROKERNELS.update({name: _function(f) for name, f in formulas.FUNCTIONS.items()})


def kernel_named(name: str) -> Kernel | None:
    """What the microkernel ``name`` computes, None where nobody has said so."""
    brought = BROUGHT.get(name)
    return _function(brought.formula) if brought else MICROKERNELS.get(name)


@microkernel
def _gemm(out: Array, operands: Sequence[Array], params: Params) -> Array:
    a, b = operands
    product = np.matmul(a, b.swapaxes(-1, -2) if params["transposed"] else b)
    added = tuple(i for i in range(out.ndim - 2) if out.shape[i] < product.shape[i])
    product = np.sum(product, added, keepdims=True) if added else product
    return np.asarray(out + product) if params["accumulate"] else product


@microkernel
def _dequantise(out: Array, operands: Sequence[Array], params: Params) -> Array:
    codes, scales = operands[:2]
    of_row = np.arange(codes.shape[-2]) // params["group"]
    number = (codes - np.float32(params["zero"])) * scales[..., of_row, :]
    return number + operands[2][..., of_row, :] if params["lifted"] else number


@microkernel
def _e4m3_rows(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return coded_rows(operands[0])


@microkernel
def _square_sum(out: Array, operands: Sequence[Array], params: Params) -> Array:
    (a,) = operands
    return np.asarray(np.sum(a * a, _trailing_axes(out, a)))


@microkernel
def _row_sum(out: Array, operands: Sequence[Array], params: Params) -> Array:
    (a,) = operands
    return np.asarray(np.sum(a, _trailing_axes(out, a)))


@microkernel
def _row_max(out: Array, operands: Sequence[Array], params: Params) -> Array:
    (a,) = operands
    return np.asarray(np.max(a, _trailing_axes(out, a), initial=-np.inf))


@microkernel
def _first_at(out: Array, operands: Sequence[Array], params: Params) -> Array:
    a, top = operands
    index = params["rank"] * params["block"] + np.arange(a.shape[-1])
    found = (a == _leading(top, a)) & (index < params["limit"])
    return np.asarray(np.where(found, -index, -np.inf).max(-1), np.float32)


@microkernel
def _likelihood(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return draws.likelihoods(*operands)


@microkernel
def _draw(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return draws.drawn(*operands)


@microkernel
def _rms_scale(out: Array, operands: Sequence[Array], params: Params) -> Array:
    a, squares, gain = operands
    root = np.sqrt(squares / params["count"] + params["eps"])
    return np.asarray(a / _leading(root, a) * gain)


@microkernel
def _inverse_rms(out: Array, operands: Sequence[Array], params: Params) -> Array:
    (squares,) = operands
    return np.asarray(1 / np.sqrt(squares / params["count"] + params["eps"]))


@microkernel
def _exp_sub(out: Array, operands: Sequence[Array], params: Params) -> Array:
    a, top = operands
    return np.asarray(np.exp(a - _leading(top, a)))


@microkernel
def _larger(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return np.maximum(*operands)


@microkernel
def _at_least(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return np.maximum(operands[0], np.float32(params["value"]))


@microkernel
def _top_k(out: Array, operands: Sequence[Array], params: Params) -> Array:
    scores, *bias = operands
    return gating.top_k(scores, bias[0] if bias else None, params)


@microkernel
def _dispatch(out: Array, operands: Sequence[Array], params: Params) -> Array:
    a, gates = operands
    sent = np.zeros_like(out)
    for *row, expert in np.argwhere(gates != 0):
        sent[(*row, expert)] = a[tuple(row)]
    return sent


@microkernel
def _expert_gemm(out: Array, operands: Sequence[Array], params: Params) -> Array:
    a, b, gates = operands
    product = np.zeros_like(out)
    for expert in range(gates.shape[-1]):
        rows = gates[..., expert] != 0
        if rows.any():  # nobody asks for the weights of the others
            product[rows, expert] = a[rows, expert] @ b[:, expert]
    return product


@microkernel
def _combine(out: Array, operands: Sequence[Array], params: Params) -> Array:
    a, gates = operands
    total = np.zeros_like(out)
    for *row, expert in np.argwhere(gates != 0):
        total[tuple(row)] += gates[(*row, expert)] * a[(*row, expert)]
    return total


@microkernel
def _merge_softmax(out: Array, operands: Sequence[Array], params: Params) -> Array:
    (other,) = operands
    count = params["count"]
    lanes, rest = divmod(out.shape[-1], count)
    if out.shape != other.shape or rest or lanes < 3:
        raise ValueError(f"{list(out.shape)} and {list(other.shape)} are not {count} softmaxes")
    ends = [count * (lanes - 2), count * (lanes - 1)]
    (values, sums, tops), (more, others, highs) = (np.split(a, ends, -1) for a in (out, other))
    top = np.maximum(tops, highs)
    kept, added = np.exp(tops - top), np.exp(highs - top)
    wide = values.reshape((*top.shape, lanes - 2)) * kept[..., None]
    wide = wide + more.reshape(wide.shape) * added[..., None]
    return np.concatenate([wide.reshape(values.shape), sums * kept + others * added, top], -1)


@microkernel
def _rope(out: Array, operands: Sequence[Array], params: Params) -> Array:
    a, frequency = operands
    rows = np.arange(a.shape[-2]) if a.ndim > 1 else np.zeros(1)
    # Angles in double precision: at large positions float32 would lose the turn's last bits.
    angle = np.multiply.outer(params["position"] + params["step"] * rows, frequency.astype(float))
    first, second = formulas.turned(a[..., 0::2], a[..., 1::2], angle if a.ndim > 1 else angle[0])
    return np.stack([first, second], -1).reshape(a.shape)


@microkernel
def _mask_causal(out: Array, operands: Sequence[Array], params: Params) -> Array:
    rows, keys = out.shape[-2:]
    query = params["query"] + params["query_step"] * np.arange(rows)[:, None]
    key = params["key"] + params["key_step"] * np.arange(keys)[None, :]
    hidden = (key > query) | (key >= params["limit"])
    return np.where(hidden, np.float32(-np.inf), out)


@microkernel
def _mask_window(out: Array, operands: Sequence[Array], params: Params) -> Array:
    rows, keys = out.shape[-2:]
    query = params["query"] + params["query_step"] * np.arange(rows)[:, None]
    key = params["key"] + params["key_step"] * np.arange(keys)[None, :]
    behind = np.minimum(query, params["limit"] - 1) - key
    return np.where(behind >= params["window"], np.float32(-np.inf), out)


@microkernel
def _mask_slots(out: Array, operands: Sequence[Array], params: Params) -> Array:
    head, count = _ring_state(operands[0])
    age = (np.arange(out.shape[-1]) - head) % out.shape[-1]
    return np.where(age < count, out, np.float32(-np.inf))


@microkernel
def _ring_set(out: Array, operands: Sequence[Array], params: Params) -> Array:
    _ring_state(out)
    return np.array([0, params["count"]])


@microkernel
def _ring_grow(out: Array, operands: Sequence[Array], params: Params) -> Array:
    head, count = _ring_state(out)
    return np.array([head, count + 1])


@microkernel
def _ring_drop(out: Array, operands: Sequence[Array], params: Params) -> Array:
    head, count = _ring_state(out)
    return np.array([(head + 1) % params["capacity"], count - 1])


@microkernel
def _ring_push(out: Array, operands: Sequence[Array], params: Params) -> Array:
    entry, state = operands
    head, count = _ring_state(state)
    result = out.copy()
    # The entry counts only after `ring_grow`, so that several rings can share one state.
    result[..., (head + count) % out.shape[-2], :] = entry
    return result


@microkernel
def _ring_oldest(out: Array, operands: Sequence[Array], params: Params) -> Array:
    ring, state = operands
    head, _ = _ring_state(state)
    return ring[..., head % ring.shape[-2], :]


@microkernel
def _rotate(out: Array, operands: Sequence[Array], params: Params) -> Array:
    return np.roll(out, -params["by"], 0)


@microkernel
def _select_lanes(out: Array, operands: Sequence[Array], params: Params) -> Array:
    (a,) = operands
    lane = np.arange(out.shape[0]) + params["shift"]
    held = (lane >= 0) & (lane < a.shape[0])
    result = np.zeros_like(out)
    result[held] = a[lane[held]]
    return result


def _ring_state(state: Array) -> tuple[int, int]:
    """Head and count of a ring buffer."""
    if state.shape != (2,) or state.dtype.kind != "i":
        raise ValueError("the state of a ring buffer is an i32[2]: head and count")
    return int(state[0]), int(state[1])
