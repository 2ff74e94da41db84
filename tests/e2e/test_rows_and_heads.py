"""Norms, softmaxes, products and sums over any dim of a value, however the mesh splits it: emitted
programs against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tensor_programs import MESHES, assert_close, graph_of, random_tensors, results

from meshc.support.diagnostics import MeshcError

Arrays = dict[str, np.ndarray]
Reference = Callable[[Arrays], list[np.ndarray]]
HEAD = "model m(L={rows}, E=12, F=7, G=2, H=4, D=4, T=9)"


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    weights = np.exp(x - x.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


def norm(x: np.ndarray, gain: np.ndarray, axis: int = -1) -> np.ndarray:
    shape = [1] * x.ndim
    shape[axis] = -1
    return x / np.sqrt(np.mean(x * x, axis, keepdims=True) + 1e-5) * gain.reshape(shape)


def heads(t: Arrays) -> np.ndarray:
    return np.einsum("le,ehd->lhd", t["x"], t["wq"])


def causal(x: np.ndarray) -> np.ndarray:
    seen = np.arange(x.shape[1]) <= np.arange(len(x))[:, None]
    return softmax(np.where(seen, x, -np.inf))


def turned(x: np.ndarray) -> np.ndarray:
    count = x.shape[-1] // 2
    angle = np.outer(np.arange(len(x)), 10000.0 ** (-np.arange(count) / count))
    a, b = x[:, 0::2], x[:, 1::2]
    pairs = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return np.stack(pairs, -1).reshape(x.shape)


def small(t: Arrays) -> list[np.ndarray]:
    h = norm(t["x"], t["g"]) @ t["a"]
    return [norm(h, t["m"]) @ t["b"], softmax(h)]


def shared_weights(t: Arrays) -> list[np.ndarray]:
    weights = softmax(t["x"] @ t["a"])
    return [weights @ t["b"], weights, weights * weights]


Q = "param wq[E, H, D]  q = x @ wq"
PROGRAMS: dict[str, tuple[str, Reference]] = {
    "softmax_alone": ("return softmax(x)", lambda t: [softmax(t["x"])]),
    "softmax_over_rows": ("return softmax(x, dim = L)", lambda t: [softmax(t["x"], 0)]),
    "softmax_read_by_all": (
        "param a[E, F], b[F, E]  w = softmax(x @ a)  return w @ b, w, w * w",
        shared_weights,
    ),
    "softmax_of_heads": (
        f"{Q}  return softmax(q), softmax(q, dim = H)",
        lambda t: [softmax(heads(t)), softmax(heads(t), 1)],
    ),
    "softmax_of_softmax": ("return softmax(softmax(x))", lambda t: [softmax(softmax(t["x"]))]),
    "causal_without_cache": (
        "param w[E, T]  s = x @ w  return softmax(s, mask = causal), s",
        lambda t: [causal(t["x"] @ t["w"]), t["x"] @ t["w"]],
    ),
    "fewer_elements_than_cores": (
        "param g[E], a[E, G], m[G], b[G, F]  h = rms_norm(x, g) @ a"
        "  return rms_norm(h, m) @ b, softmax(h)",
        small,
    ),
    "norm_of_heads": (
        f"{Q}  param g[D], h[H]  return rms_norm(q, g), rms_norm(q, h)",
        lambda t: [norm(heads(t), t["g"]), norm(heads(t), t["h"], 1)],
    ),
    "a_number_for_each_head": (
        f"{Q}  param b[H]  return q + b, q * b",
        lambda t: [heads(t) + t["b"][:, None], heads(t) * t["b"][:, None]],
    ),
    "two_contracted_dims": (
        f"{Q}  param wo[H, D, E]  return q @ wo",
        lambda t: [np.einsum("lhd,hde->le", heads(t), t["wo"])],
    ),
    "contracted_in_another_order": (
        f"{Q}  param wo[D, H, E]  return transpose(q, H, D) @ wo",
        lambda t: [np.einsum("lhd,dhe->le", heads(t), t["wo"])],
    ),
    "pairs_stay_together": (
        "return rope(x, style = interleaved)",
        lambda t: [turned(t["x"])],
    ),
    "softmax_of_a_number_for_each_row": (
        "param u[E]  return softmax(x @ u)",
        lambda t: [softmax(t["x"] @ t["u"])],
    ),
    "one_number_for_each_row": (
        "param u[E], v[E]  a = x @ u  return x @ v, x * a",
        lambda t: [t["x"] @ t["v"], t["x"] * (t["x"] @ t["u"])[:, None]],
    ),
}


def check(folder: Path, name: str, rows: int, mesh: str) -> None:
    body, reference = PROGRAMS[name]
    text = f"{HEAD.format(rows=rows)} {{ main(x[L, E]) {{ {body} }} }}"
    tensors = random_tensors(graph_of(text, mesh))
    assert_close(results(folder, text, mesh, tensors), reference(tensors))


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, rows: int, tmp_path: Path) -> None:
    """Each of two meshes with one of the numbers of rows, other programs the other way round."""
    turn = ([*PROGRAMS].index(name) + rows // 2) % 2
    check(tmp_path, name, rows, (MESHES[2], MESHES[4])[turn])


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("rows", [1, 2, 7, 9])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_on_every_mesh(name: str, rows: int, mesh: str, tmp_path: Path) -> None:
    check(tmp_path, name, rows, mesh)


REFUSED = {
    "keeps_heads": (f"{Q}  param w[D, F]  return q @ w", "and keeps H"),
    "matrix_for_each_head": (f"{Q}  param w[D, H, F]  return q @ w", "a matrix for each H"),
    "matrix_for_each_row": ("param w[E, L, F]  return x @ w", "a matrix for each L"),
    "contracts_rows": ("param w[L, F]  return transpose(x) @ w", "which are its rows"),
    "left_side_without_rows": ("param v[E], w[E, F]  return x * v, v @ w", "has no rows L"),
    "norm_over_rows": ("param g[L]  return rms_norm(x, g)", "a norm over L"),
    "numbers_in_the_padding": (
        f"{Q}  param g[D]  return rms_norm(softmax(q, dim = H), g)",
        "reads the pad lanes of D",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_is_refused(name: str, tmp_path: Path) -> None:
    body, words = REFUSED[name]
    text = f"model m(L=7, E=12, F=7, H=3, D=5) {{ main(x[L, E]) {{ {body} }} }}"
    with pytest.raises(MeshcError) as error:
        results(tmp_path, text, "3x2", random_tensors(graph_of(text, "3x2")))
    (found,) = error.value.diagnostics
    assert words in found.message and found.help
