"""Masks by position on the simulator: drawn rows, keys, limits and windows beside those of the
interpreter, single edits of what is emitted, and predicted cycles."""

import json
import random
import re

import numpy as np
import pytest
from csl_runs import emit, prepare, run_files, run_script, save, tile_text

from meshc.interp.tile import TileMachine
from meshc.support.diagnostics import MeshcError

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.float32}
MASKS = 6
"""How many masks a drawn program has."""


def program(dtype, shape, masks):
    """A module of two by two cores with a buffer of scores for each of ``masks``."""
    dims = ", ".join(f"N{n} = {n}" for n in sorted({*shape, 2}))
    kinds = ", ".join(f"N{n}" for n in (2, 2, *shape))
    lines = ["module @t level(tile) holds(channels_matched) {"]
    lines += [f"  dims {dims}", "  scalars pos = 0..2000", "  mesh y = 2, x = 2"]
    for n in range(len(masks)):
        extents = ", ".join(map(str, shape))
        lines.append(f"  buffer %s{n} : {dtype}[{extents}] {{role = in}}")
        at = "{lanes = [i, j, k], element = [y, x, i, j, k]}"
        lines.append(f"  port @s{n} in {dtype}[{kinds}] : %s{n} {at}")
        lines.append(f"  port @m{n} out {dtype}[{kinds}] : %s{n} {at}")
    body = [f"    tile.{kernel} %s{n} {{{given}}}" for n, (kernel, given) in enumerate(masks)]
    return "\n".join([*lines, "  program @main {", *body, "  }", "}"]) + "\n"


def drawn(dice):
    """A mask by position, of a window that may reach beyond all positions."""
    kernel = dice.choice(("mask_window", "mask_window", "mask_window", "mask_causal"))
    window = dice.choice((1, 2, 3, dice.randint(4, 40), 2**15 - 1, 2**40))
    given = {
        "query": dice.choice(("pos", f"2*x + {dice.randint(0, 9)}", "y + pos - 2", "3")),
        "query_step": dice.randint(0, 4),
        "key": dice.choice(("y", "x + 2*y", "(x + 1) mod 2", f"{dice.randint(0, 9)}", "pos - 1")),
        "key_step": dice.randint(1, 5),
        "limit": dice.choice(("pos + 1", f"{dice.randint(1, 30)}", "2000")),
    }
    if kernel == "mask_window":
        given["window"] = window
    words = ", ".join(
        f'{n} = "{v}"' if isinstance(v, str) else f"{n} = {v}" for n, v in given.items()
    )
    return kernel, words


def check(seed, folder, monkeypatch):
    """A program of masks, run at several positions; which lanes they hide."""
    dice = random.Random(seed)
    dtype, arch = dice.choice([*DTYPES]), dice.choice(("wse2", "wse3"))
    shape = (dice.randint(1, 3), dice.randint(1, 4), dice.randint(1, 9))
    text = program(dtype, shape, [drawn(dice) for _ in range(MASKS)])
    positions = (0, 1, dice.randint(2, 40), dice.randint(2, 2000))
    rng = np.random.default_rng(seed)
    tensors = {
        f"s{n}": rng.integers(-9, 9, (2, 2, *shape)).astype(DTYPES[dtype]) for n in range(MASKS)
    }
    files = emit({"main": tile_text(text, arch)})
    return compared(text, files, tensors, positions, folder, monkeypatch)


def compared(text, files, tensors, positions, folder, monkeypatch):
    """Hold what ``files`` do at some positions against the interpreter of ``text``; which lanes are
    hidden."""
    machine = TileMachine(tile_text(text, "wse3"))
    prepare(files, tensors, folder, monkeypatch)
    hidden = []
    for position in positions:
        for name, tensor in tensors.items():
            machine.load(name, tensor)
        save(folder / "data", tensors)
        run_script(options=("--pos", str(position)))
        for name, wanted in machine.run({"pos": position}).items():
            found = np.load(folder / "data" / f"{name}.npy")
            np.testing.assert_array_equal(found, wanted, f"{name} at {position}")
            hidden.append(np.isneginf(wanted).ravel())
    return np.concatenate(hidden)


def test_a_drawn_program_of_masks(tmp_path, monkeypatch):
    assert 0.1 < check(1, tmp_path, monkeypatch).mean() < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 300))
def test_drawn_programs_of_masks(seed, tmp_path, monkeypatch):
    check(seed, tmp_path, monkeypatch)


WINDOWS = [
    ("mask_window", 'window = 4, query = "2*x", query_step = 9, key = "y", key_step = 2, '
     'limit = "pos + 1"'),
    ("mask_window", 'window = 3, query = "pos", query_step = 0, key = "x", key_step = 2, '
     'limit = "pos + 1"'),
]  # fmt: skip
EDITS = {
    "a wider window": (r"reach > 4\b", "reach > 5"),
    "a narrower window": (r"reach - 3\b", "reach - 2"),
    "a key less": (r"\(reach - (\d)\) / 2", r"(reach - \1 - 1) / 2"),
    "all keys": (r"if \(passed < 7\) passed else 7", "7"),
    "beyond the last key": (r"if \(passed < 7\) passed else 7", "passed"),
    "no limit": (r"if \(query < limit\) query else limit", "query"),
    "the limit alone": (r"if \(query < limit\) query else limit", "limit"),
    "another query": (r"9 \* row", "2 * row"),
    "another first key": (r"@as\(i16, my_\w+\)", "@as(i16, 0)"),
    "one row": (r"\w+_per_row\w* \* row", "0"),
    "one head": (r"\w+_per_h0\w* \* h0", "0"),
    "another number": (r"0xff800000", "0x7f800000"),
}
"""What of the text of :data:`WINDOWS` is edited wherever it stands."""


@pytest.mark.parametrize(
    "edit",
    ["", *(e if e == "a key less" else pytest.param(e, marks=pytest.mark.slow) for e in EDITS)],
)
def test_an_edit_is_noticed(edit, tmp_path, monkeypatch):
    """As it was emitted the program is right, without the edit it is not."""
    text, positions = program("f32", (2, 3, 7), WINDOWS), (0, 5, 11, 40)
    files = emit({"main": tile_text(text, "wse3")})
    tensors = {name: np.ones((2, 2, 2, 3, 7), np.float32) for name in ("s0", "s1")}
    if not edit:
        compared(text, files, tensors, positions, tmp_path, monkeypatch)
        return
    pattern, new = EDITS[edit]
    changed, count = re.subn(pattern, new, files["main.csl"])
    assert count > 0
    with pytest.raises((AssertionError, MeshcError)):
        compared(text, {**files, "main.csl": changed}, tensors, positions, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["wse2", "wse3"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(
    ("shape", "window"),
    [((4, 1, 16), 8), ((2, 8, 16), 4), ((1, 8, 16), 4), ((3, 8, 12), 5), ((8, 1, 40), 10)],
)
def test_predicted_cycles(shape, window, dtype, arch, tmp_path, monkeypatch):
    """Of a step behind full caches, and of a whole prompt."""
    _, rows, keys = shape
    step, last = (2, 0) if rows > 1 else (0, keys - 1)
    given = f'window = {window}, query = "pos", query_step = {step}, key = y, key_step = 1, '
    text = program(dtype, shape, [("mask_window", given + f'limit = "{keys}"')])
    files = emit({"main": tile_text(text.replace("0..2000", f"0..{max(last, 1)}"), arch)})
    tensors = {"s0": np.zeros((2, 2, *shape), DTYPES[dtype])}
    options = ("--pos", str(last))
    _, cycles = run_files(files, tensors, tmp_path, monkeypatch, options=options)
    assert json.loads(files["report.json"])["predicted_cycles"] == pytest.approx(cycles, rel=0.2)
