"""Compiles each operation that a program calls with the maker's compiler, without a chip, and
prints its name with what was said: compiled_by_maker.py DIR PHASE."""

import contextlib
import importlib
import json
import os
import sys
import types

os.environ["TTLANG_COMPILE_ONLY"] = "1"

import torch
import ttnn

TILE = 32


def empty(rows, columns):
    values = torch.zeros((rows * TILE, columns * TILE))
    return ttnn.from_torch(values, dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT)


def told(name, operation, said):
    def compiled(*tensors):
        if name not in said:
            try:
                operation(*tensors)
                said[name] = "accepted"
            except Exception as error:
                said[name] = f"refused: {error}"

    return compiled


folder, phase = sys.argv[1:]
tiles = types.ModuleType("tiles")
tiles.empty = empty
sys.modules["tiles"] = tiles
sys.path.insert(0, folder)
with open(f"{folder}/layouts.json", encoding="utf-8") as file:
    layouts = json.load(file)
module, said = importlib.import_module(phase), {}
for name, found in list(vars(module).items()):
    if callable(found) and name not in ("empty", "program"):
        setattr(module, name, told(name, found, said))
columns, rows = layouts["nodes"]
panels = {}
for entry in layouts["given"]:
    high, wide = entry["block"]
    panel = empty(high * rows, wide * columns)
    panels[entry["name"]] = [panel] * entry["layers"] if "layers" in entry else panel
with contextlib.redirect_stdout(sys.stderr):
    module.program(**panels)
print(json.dumps(said), flush=True)
os._exit(0)
