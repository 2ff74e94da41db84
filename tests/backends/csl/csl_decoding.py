"""Decode steps of a language model, emitted as CSL and run on the fabric simulator."""

import json
from pathlib import Path

import numpy as np
from csl_runs import Steps, prepare

from meshc.driver import CompileRequest, compile_loaded, find_weights, load_any, open_weights
from meshc.support.diagnostics import Diagnostics

TINY = Path(__file__).parents[2] / "data" / "tiny"


class Decoder:
    """The decode step of a tiny model, compiled into ``folder``; its PEs keep the caches.

    ``cycles`` are those of the last step on the simulator, ``predicted`` those of the compiler.
    """

    def __init__(self, model, folder, monkeypatch, **request):
        report = Diagnostics()
        loaded = load_any(str(TINY / model), report)
        asked = CompileRequest(target="csl", phase="decode", **request)
        compiled = compile_loaded(loaded, asked, (), report)
        place = find_weights(model, TINY / model, None)
        self.tensors = open_weights(place, loaded.config, None, report)
        (module,) = compiled.modules.values()
        ports = [p for p in module.ports if p.direction == "in"]
        (self.input,) = {p.name for p in ports if p.buffer.name == "x"}
        self.predicted = json.loads(compiled.files["report.json"])["predicted_cycles"]
        self.cycles = 0
        prepare(compiled.files, {}, folder, monkeypatch)
        self.steps = Steps(folder, self.tensors)

    def step(self, token, position):
        """Logits behind ``token`` at ``position``."""
        rows = np.asarray(self.tensors["embedding"])[token][None, None]
        outputs = self.steps.run({self.input: rows}, {"pos": position})
        self.cycles = self.steps.cycles
        return outputs["logits"].ravel()

    def generate(self, ids, count):
        """``count`` greedy tokens after ``ids``, the prompt read token by token."""
        tokens = list(ids)
        for position in range(len(ids) + count - 1):
            logits = self.step(tokens[position], position)
            if position >= len(ids) - 1:
                tokens.append(int(logits.argmax()))
        return tokens[len(ids) :]
