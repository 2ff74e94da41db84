"""Masks by position on the simulator: drawn rows, keys, limits and windows beside the interpreter's,
and their predicted cycles."""

import json
import random

import numpy as np
import pytest
from csl_runs import emit, prepare, run_files, run_script, save, tile_text

from meshc.interp.tile import TileMachine

DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.float32}
EXTENTS = (2, 3, 4, 5)
"""Heads, rows and keys of a drawn buffer, and how many masks a program has."""


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
    """A program of masks, run at several positions; how many lanes they hide, and how many not."""
    dice = random.Random(seed)
    dtype, arch = dice.choice([*DTYPES]), dice.choice(("wse2", "wse3"))
    shape = (dice.randint(1, 3), dice.randint(1, 4), dice.randint(1, 9))
    module = tile_text(program(dtype, shape, [drawn(dice) for _ in range(6)]), arch)
    machine = TileMachine(module)
    rng = np.random.default_rng(seed)
    tensors = {f"s{n}": rng.integers(-9, 9, (2, 2, *shape)).astype(DTYPES[dtype]) for n in range(6)}
    prepare(emit({"main": module}), tensors, folder, monkeypatch)
    hidden = []
    for position in (0, 1, dice.randint(2, 40), dice.randint(2, 2000)):
        save(folder / "data", tensors)
        for name, tensor in tensors.items():
            machine.load(name, tensor)
        run_script(options=("--pos", str(position)))
        for name, wanted in machine.run({"pos": position}).items():
            found = np.load(folder / "data" / f"{name}.npy")
            np.testing.assert_array_equal(found, wanted, f"{name} at {position}")
            hidden.append(np.isneginf(wanted))
    return np.concatenate([each.ravel() for each in hidden])
