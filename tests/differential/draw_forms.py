"""Pinned forms: by which a few results of a decode step are computed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from building import Drawing

import meshc
from meshc.ir.ops import graph

FORMS = {
    graph.Matmul: ("gemv_x", "gemv_y", "experts_x", "experts_y", "dispatch_x", "combine_parts"),
    graph.RmsNorm: ("reduced", "deferred"),
    graph.Softmax: ("deferred", "merged"),
    graph.Add: ("as_first", "as_second"),
    graph.Mul: ("as_first", "as_second"),
    graph.Append: ("shift", "concat", "cyclic"),
}
"""Which forms an op may have in a step; of products those are few that experts have."""
_RARE = ("experts_x", "experts_y", "dispatch_x", "combine_parts")


def draw_forms(draw: Drawing, model: str | Path, seq: int) -> tuple[str, ...]:
    """``RESULT=FORM`` for one to three results of the decode step of ``model``, a path or a text of
    the language; empty where no op has any forms."""
    with TemporaryDirectory(prefix="differential-") as name:
        path = Path(name) / "case.mesh"
        if isinstance(model, str):
            path.write_text(model)
        how: dict[str, Any] = {"compile_to": "graph", "phase": "decode", "seq": seq}
        try:
            module = meshc.compile(path if isinstance(model, str) else model, **how)
        except meshc.MeshcError:
            return ()  # which compiling it for its target says too
        ops = [op for op in module.modules["decode"].walk() if type(op) in FORMS]
    found = {}
    for op in draw.random.sample(ops, min(len(ops), draw.number(1, 3))):
        forms = FORMS[type(op)]
        usual = [form for form in forms if form not in _RARE or draw.chance(5)]
        found[op.results[0].name] = draw.of(usual)
    return tuple(f"{result}={form}" for result, form in found.items())
