"""The host program of a language model of two phases, which reads prompts and continues them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshc.backends.csl.host_file import ROWS, Vocabulary, chunk_of
from meshc.backends.csl.spelling.names import phase_file, plain
from meshc.backends.templates import render
from meshc.ir.batch import POSITION, batch_of, request_axis
from meshc.ir.module import Buffer, Module
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.ir.phases import DECODE, PREFILL
from meshc.support.diagnostics import fail


def phases_file(
    modules: Mapping[str, Module],
    symbols: Mapping[str, Mapping[str, Buffer]],
    vocabulary: Vocabulary,
) -> str:
    """``run.py`` beside the folders of the phases of ``modules``, whose buffers the host sees by
    ``symbols``, for tokens of a ``vocabulary``. Raises ``csl-port-name`` where a cache is called
    differently in the two."""
    kept = [_kept(symbols[phase]) for phase in (PREFILL, DECODE)]
    for name, symbol in kept[1].items():
        if kept[0].get(name) != symbol:
            fail(
                "csl-port-name",
                f"the state '{plain(name)}' cannot have the same name in both phases",
                help="call it something that no scalar or coordinate is called",
            )
    module = modules[DECODE]
    mesh = module.the_mesh()
    return render(
        "meshc.backends.csl",
        "phases.py.jinja",
        model=re.sub(r"[\"\\]", "", plain(module.name)).removesuffix(f"_{DECODE}"),
        rows=mesh.rows,
        columns=mesh.columns,
        prefill=phase_file(PREFILL),
        decode=phase_file(DECODE),
        length=ROWS,
        position=POSITION if POSITION in modules[PREFILL].scalars else "",
        chunk=chunk_of(modules[PREFILL]),
        learned=vocabulary.learned is not None,
        requests=batch_of(module) if scalars_of_rounds(module) else 0,
        axes={
            symbol: request_axis(module, buffer.value)
            for symbol, buffer in symbols[DECODE].items()
            if buffer.role == "state"
        },
    )


def reads_prompts(modules: Mapping[str, Module]) -> bool:
    """Whether ``modules`` are the two phases of a language model: a step of decoding, and a
    program that fills the caches with the rows of one input."""
    if modules.keys() != {PREFILL, DECODE}:
        return False
    prefill = modules[PREFILL]
    given = {buffer.value for buffer in prefill.buffers if buffer.role == "in"}
    inputs = {p.name for p in prefill.ports if p.direction == "in" and p.buffer in given}
    return len(inputs) == 1 and [*prefill.scalars] in ([ROWS], [ROWS, POSITION])


def _kept(symbols: Mapping[str, Buffer]) -> dict[str, str]:
    """Symbols of what is kept from run to run, by the names of the buffers."""
    return {b.value.name: symbol for symbol, b in symbols.items() if b.role == "state"}
