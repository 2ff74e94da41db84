"""Texts of a small llama at every stage of the pipeline, to be changed by hand."""

from __future__ import annotations

from functools import cache

from meshc.devices import device
from meshc.frontend.language import elaborate, library_model
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.support.spans import Source

SIZES = {"E": 12, "H": 6, "G": 2, "D": 8, "F": 20, "V": 23, "layers": 2}


@cache
def stages(
    phase: str,
    grid: str,
    numbers: str = "ideal",
    settings: tuple[tuple[str, str], ...] = (),
    batch: int = 1,
) -> dict[str, str]:
    """The text after each pass, by the pass's name; ``settings`` replaces specs of passes. Caches
    shift their rows, so that there is a ring."""
    module = elaborate(library_model("llama", SIZES), phase, seq=12, batch=batch)
    module.options |= {"dtype": "f32", "accumulate": "f32"}
    module.device = device(numbers)
    found = {}
    laid_out = {"partition": f"partition{{grid={grid},kv=shift}}"}
    for step in pipeline_to("tile", {**laid_out, **dict(settings)}):
        module = PassManager([step]).run(module)
        found[step.NAME] = print_module(module)
    return found


def text_after(name: str, phase: str = "decode", grid: str = "4x3", numbers: str = "ideal") -> str:
    """The module after the pass ``name``."""
    return stages(phase, grid, numbers)[name]


def parse(text: str) -> Module:
    return parse_module(Source("changed.meshir", text))


def changed(text: str, *edits: tuple[str, str]) -> Module:
    """The module whose text has the first place of each old text replaced by the new one."""
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return parse(text)
