"""SmolLM2-135M in emitted CSL on a simulated wafer, two layers on 18x96 PEs and all on six regions
of 96x18, weights of its file quantised on the cores (Q4_1 in the MLPs, Q8_0 in the head): the
tokens of the interpreter of the tile level with decoded weights, at the same element types.

The interpreter adds up in another order than the wafer, so the logits are compared as well.
"""

import numpy as np
import pytest

from meshc.driver import (
    CompileRequest,
    RunRequest,
    compile_loaded,
    find_weights,
    formats_to_keep,
    load_any,
    open_weights,
    opened,
    run_emitted,
)
from meshc.driver.weights import IF_POSSIBLE
from meshc.interp.tile import TileMachine
from meshc.support.diagnostics import Diagnostics

MODEL = "smollm2-135m"
PROMPT = (504, 3575, 282)
COUNT = 3
NEAR = 1e-2
"""Difference of logits that is allowed, in units of the largest: f16 with sums of f32."""

pytestmark = [pytest.mark.models, pytest.mark.smollm2, pytest.mark.slow]


def compiled(**options):
    """The decode step in f16 with a cache of 16 tokens."""
    request = CompileRequest(phase="decode", dtype="f16", seq=16, **options)
    report = Diagnostics()
    return compile_loaded(load_any(MODEL, report), request, (), report), report


def decoded_weights(program, layers):
    """The tensors of the model, decoded when they are read."""
    place = find_weights(MODEL, None, None)
    return open_weights(place, program.loaded.config, layers, Diagnostics())


def interpreted(tokens, layers):
    """Logits behind each of ``tokens`` from the interpreter of the tile level."""
    program, _ = compiled(mesh="2x2", device="ideal", compile_to="tile", layers=layers)
    module, tensors = program.modules["decode"], decoded_weights(program, layers)
    taken = {b.value for b in module.buffers if b.role == "in"}
    (entry,) = {p.name for p in module.ports if p.direction == "in" and p.buffer in taken}
    table, machine = np.asarray(tensors["embedding"]), TileMachine(module)
    for port in module.ports:
        if port.direction == "in" and port.name in tensors:
            machine.load(port.name, tensors[port.name])
    for position, token in enumerate(tokens):
        machine.load(entry, table[token][None, None])
        yield machine.run({"pos": position})["logits"].ravel()


@pytest.mark.parametrize(("layers", "mesh"), [(2, "18x96"), (None, "r=6,y=18,x=96")])
def test_the_wafer_decodes_what_its_cores_keep(layers, mesh):
    loaded = load_any(MODEL, Diagnostics())
    place = find_weights(MODEL, None, None)
    kept = formats_to_keep(IF_POSSIBLE, place, loaded.config, layers)
    program, report = compiled(target="csl", mesh=mesh, keep_quantised=kept, layers=layers)
    codes = {b.value.name: b.type.dtype.bits for b in program.modules["decode"].buffers
             if b.type.dtype.coded}  # fmt: skip
    assert codes.items() >= {"w_gate_w_up.codes": 4, "embedding.codes": 8}.items()
    said = [d.message for d in report.messages if d.code == "keep-quantised"]
    assert any("'w_down' is decoded: a core has 16 of its rows" in text for text in said)
    request = RunRequest((PROMPT,), COUNT, ignore_eos=True)
    with opened("csl") as backend:
        (answer,) = run_emitted(program.emitted, request, backend, Diagnostics())
    wanted = list(interpreted([*PROMPT, *answer.tokens[:-1]], layers))[len(PROMPT) - 1 :]
    assert list(answer.tokens) == [int(logits.argmax()) for logits in wanted]
    assert len({*answer.tokens}) > 1
    logits = np.reshape(answer.logits, np.shape(wanted))
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=NEAR * np.abs(wanted).max())
