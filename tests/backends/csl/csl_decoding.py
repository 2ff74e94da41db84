"""Decode steps of a language model, emitted as CSL and run on the fabric simulator."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
from csl_runs import apart

from meshc.driver import CompileRequest, compile_loaded, find_weights, load_any, open_weights
from meshc.sim import cs_python, cslc
from meshc.support.diagnostics import Diagnostics

TINY = Path(__file__).parents[2] / "data" / "tiny"


class Decoder:
    """The decode step of a tiny model, compiled into ``folder``; caches lie in its ``state``."""

    def __init__(self, model, folder, monkeypatch, strict=True, **request):
        report = Diagnostics()
        loaded = load_any(str(TINY / model), report)
        asked = CompileRequest(target="csl", phase="decode", **request)
        self.found = compile_loaded(loaded, asked, (), report)
        place = find_weights(model, TINY / model, None)
        self.tensors = open_weights(place, loaded.config, None, report)
        self.words = ["--strict-queues"] if strict else []
        self.folder = folder
        monkeypatch.chdir(folder)
        for name, text in self.found.files.items():
            (folder / name).write_text(text)
        (folder / "data").mkdir()
        (self.module,) = self.found.modules.values()
        ports = [p for p in self.module.ports if p.direction == "in"]
        (self.input,) = {p.name for p in ports if p.buffer.name == "x"}
        for port in ports:
            if port.name in self.tensors:
                np.save(folder / "data" / f"{port.name}.npy", self.tensors[port.name])
        (commands,) = (t for n, t in self.found.files.items() if n.startswith("commands"))
        compile_words = next(x for x in commands.splitlines() if x.startswith("cslc "))
        with apart():
            assert cslc.main(compile_words.split()[1:]) == 0

    def step(self, token, position):
        """Logits behind ``token`` at ``position``, and the line that ``run.py`` prints."""
        embedded = np.asarray(self.tensors["embedding"])[token][None, None]
        np.save(self.folder / "data" / f"{self.input}.npy", embedded)
        words = [*self.words, "run.py", "--name", "out", "--pos", str(position)]
        printed = StringIO()
        with apart(), redirect_stdout(printed):
            assert cs_python.main(words) == 0, printed.getvalue()
        return np.load(self.folder / "data" / "logits.npy").ravel(), printed.getvalue()

    def generate(self, ids, count):
        """``count`` greedy tokens after ``ids``, the prompt read token by token."""
        tokens = list(ids)
        for position in range(len(ids) + count - 1):
            logits, _ = self.step(tokens[position], position)
            if position >= len(ids) - 1:
                tokens.append(int(logits.argmax()))
        return tokens[len(ids) :]
