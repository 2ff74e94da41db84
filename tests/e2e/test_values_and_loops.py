"""Values that loops carry and results of programs keep what they hold, whatever else is computed:
emitted programs against NumPy in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tensor_programs import MESHES, assert_close, graph_of, random_tensors, results

Arrays = dict[str, np.ndarray]
Reference = Callable[[Arrays], list[np.ndarray]]
HEAD = "model m(L={rows}, E=12, F=10, n=3)"


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def layers(t: Arrays, z: np.ndarray, up: str = "a", down: str = "b") -> np.ndarray:
    for a, b in zip(t[up], t[down], strict=True):
        z = z + silu(z @ a) @ b
    return z


LOOP = "repeat n { param a[E, F], b[F, E]  z = z + silu(z @ a) @ b }"


def later(t: Arrays) -> list[np.ndarray]:
    v = t["x"] + t["x"]
    return [layers(t, v) * v]


def of_the_input(t: Arrays) -> list[np.ndarray]:
    z = layers(t, t["x"])
    return [z * t["x"], z, t["x"]]


def twice(t: Arrays) -> list[np.ndarray]:
    y = z = v = t["x"] + t["x"]
    for a, b, c, d in zip(t["a"], t["b"], t["c"], t["d"], strict=True):
        z = z + silu(y @ a) @ b
        y = y + silu(z @ c) @ d
    return [z, y, v]


def exchanged(t: Arrays) -> list[np.ndarray]:
    p, q = t["x"] + t["x"], silu(t["x"])
    for a, b in zip(t["a"], t["b"], strict=True):
        p, q = q, p + silu(q @ a) @ b
    return [p, q]


def around(t: Arrays) -> list[np.ndarray]:
    p, q, r = t["x"] + t["x"], silu(t["x"]), t["x"]
    for _ in range(3):
        p, q, r = q, r * r, p
    return [p, q, r]


def one_after_another(t: Arrays) -> list[np.ndarray]:
    v = t["x"] + t["x"]
    w = layers(t, v)
    return [layers(t, w, "c", "d") * v + w]


def read_inside(t: Arrays) -> list[np.ndarray]:
    z = v = t["x"] + t["x"]
    for a, b in zip(t["a"], t["b"], strict=True):
        z = z + silu(v @ a) @ b
    return [z * v]


def of_a_param(t: Arrays) -> list[np.ndarray]:
    z, y = t["x"], t["w"]
    for g in t["g"]:
        z, y = z + y, y * g
    return [z, y, t["w"]]


PROGRAMS: dict[str, tuple[str, Reference]] = {
    "read_later": (f"v = x + x  z = v  {LOOP}  return z * v", later),
    "input_read_later": (f"z = x  {LOOP}  return z * x, z, x", of_the_input),
    "one_start_for_two": (
        """v = x + x  z = v  y = v
        repeat n { param a[E, F], b[F, E], c[E, F], d[F, E]
          z = z + silu(y @ a) @ b
          y = y + silu(z @ c) @ d }
        return z, y, v""",
        twice,
    ),
    "exchanged": (
        """p = x + x  q = silu(x)
        repeat n { param a[E, F], b[F, E]  s = p + silu(q @ a) @ b  p = q  q = s }
        return p, q""",
        exchanged,
    ),
    "three_around": (
        "p = x + x  q = silu(x)  r = x  repeat n { s = p  p = q  q = r * r  r = s }"
        "  return p, q, r",
        around,
    ),
    "two_loops": (
        f"""v = x + x  z = v  {LOOP}  w = z
        repeat n {{ param c[E, F], d[F, E]  z = z + silu(z @ c) @ d }}
        return z * v + w""",
        one_after_another,
    ),
    "read_inside": (
        "v = x + x  z = v  repeat n { param a[E, F], b[F, E]  z = z + silu(v @ a) @ b }"
        "  return z * v",
        read_inside,
    ),
    "param_carried": (
        "param w[E]  z = x  y = w  repeat n { param g[E]  z = z + y  y = y * g }  return z, y, w",
        of_a_param,
    ),
    "same_result_twice": ("return x, x", lambda t: [t["x"], t["x"]]),
    "results_of_one_product": (
        "param a[E, F], b[E, F]  p = x @ a  q = x @ b  return p, q, p + q, p",
        lambda t: [t["x"] @ t[k] for k in "ab"] + [t["x"] @ (t["a"] + t["b"]), t["x"] @ t["a"]],
    ),
    "carried_twice_returned": (
        f"z = x  {LOOP}  return z, z",
        lambda t: [layers(t, t["x"])] * 2,
    ),
    "constant_carried_unchanged": (
        """param w[E]  z = x  y = w
        repeat n { param g[E]  z = z + y * g }
        v = y + y  return v * z, y""",
        lambda t: [2 * t["w"] * (t["x"] + t["w"] * t["g"].sum(0)), t["w"]],
    ),
    "computed_before_and_behind": (
        """param a[E, F]  p = silu(x @ a)  z = x
        repeat n { param g[E]  z = z * g }
        return z, p * p, p""",
        lambda t: [
            t["x"] * t["g"].prod(0),
            silu(t["x"] @ t["a"]) ** 2,
            silu(t["x"] @ t["a"]),
        ],
    ),
    "first_results_first": (
        "param w[F, E]  y = x @ transpose(m)  return x, y, y @ w",
        lambda t: [t["x"], t["x"] @ t["m"].T, t["x"] @ t["m"].T @ t["w"]],
    ),
    "port_of_a_product_last": (
        "return x + x, x @ transpose(m)",
        lambda t: [2 * t["x"], t["x"] @ t["m"].T],
    ),
    "one_product_returned_twice": (
        "y = x @ transpose(m)  return y, y",
        lambda t: [t["x"] @ t["m"].T] * 2,
    ),
    "params_returned": (
        "param w[E]  return w, x * w, w + w",
        lambda t: [t["w"], t["x"] * t["w"], 2 * t["w"]],
    ),
}


def check(folder: Path, name: str, rows: int, mesh: str, passes: dict[str, str]) -> None:
    body, reference = PROGRAMS[name]
    more = ", m[F, E]" if "transpose(m)" in body else ""
    text = f"{HEAD.format(rows=rows)} {{ main(x[L, E]{more}) {{ {body} }} }}"
    tensors = random_tensors(graph_of(text, mesh))
    assert_close(results(folder, text, mesh, tensors, passes), reference(tensors))


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, rows: int, tmp_path: Path) -> None:
    """Each of two meshes with one of the numbers of rows, other programs the other way round."""
    turn = ([*PROGRAMS].index(name) + rows // 2) % 2
    check(tmp_path, name, rows, (MESHES[0], MESHES[2])[turn], {})


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_on_every_mesh(name: str, rows: int, mesh: str, tmp_path: Path) -> None:
    check(tmp_path, name, rows, mesh, {})


REGIONS = ("read_later", "input_read_later", "one_start_for_two", "computed_before_and_behind")


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("name", REGIONS)
def test_values_reach_the_last_region(name: str, rows: int, tmp_path: Path) -> None:
    """Two and three regions in turn."""
    count = 2 + ([*REGIONS].index(name) + rows // 2) % 2
    passes = {"split-regions": f"split-regions{{regions={count}}}"}
    check(tmp_path, name, rows, "3x2", passes)
