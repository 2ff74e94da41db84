"""Models compiled with any pass options, and run by the interpreter or as emitted programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from laying_out import laid_out

from meshc.backends.python import HostFacts, emit, load_program
from meshc.driver import CompileRequest, graph_module, load_any, open_weights
from meshc.interp.tile import TileMachine
from meshc.ir.batch import batch_of
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics


@dataclass
class MeshProgram:
    """Both phases of a language model at the tile level, and its tensors."""

    name: str
    modules: dict[str, Module]
    tensors: Mapping[str, np.ndarray]
    capacity: int

    def files(self) -> dict[str, str]:
        """The emitted Python program."""
        vocab, batch = self.tensors["embedding"].shape[0], batch_of(self.modules["decode"])
        learned = "positions" if "positions" in self.tensors else None
        facts = HostFacts(
            self.name, "embedding", vocab, self.capacity, batch=batch, learned=learned
        )
        return emit(self.modules, facts)

    def interpret(self, ids: list[int], count: int) -> list[int]:
        """``count`` greedy tokens after ``ids``, core by core."""
        machines = {phase: self.machine(phase) for phase in self.modules}
        prefill, decode = machines["prefill"], machines["decode"]
        start = len(ids) - 1
        prefill.load(self.input("prefill"), self.embedded(ids[:-1], 0)[None])
        prefill.run({"len": start})
        decode.adopt_state(prefill)
        token, found = ids[-1], []
        for position in range(start, start + count):
            decode.load(self.input("decode"), self.embedded([token], position)[None])
            token = int(decode.run({"pos": position})["logits"].ravel().argmax())
            found.append(token)
        return found

    def embedded(self, ids: list[int], position: int) -> np.ndarray:
        """The rows of tokens that stand behind each other from ``position`` on."""
        rows = self.tensors["embedding"][ids]
        if "positions" in self.tensors:
            rows = rows + self.tensors["positions"][position : position + len(ids)]
        return rows

    def machine(self, phase: str) -> TileMachine:
        """The interpreter of one phase with the weights in its buffers."""
        machine = TileMachine(self.modules[phase])
        for port in machine.module.ports:
            if port.direction == "in" and port.name in self.tensors:
                machine.load(port.name, self.tensors[port.name])
        return machine

    def input(self, phase: str) -> str:
        """The name of the phase's activations."""
        module = self.modules[phase]
        taken = {b.value for b in module.buffers if b.role == "in"}
        ports = [p for p in module.ports if p.direction == "in" and p.buffer in taken]
        (name,) = dict.fromkeys(p.name for p in ports)
        return name

    def run(
        self, folder: Path, ids: list[int], count: int, order: np.ndarray | None = None
    ) -> tuple[list[int], np.ndarray]:
        """Tokens and logits [count, vocab] of the emitted program, written to ``folder``."""
        write(folder, self.files())
        model = load_program(folder).load(self.tensors, order)
        logits: list[np.ndarray] = []
        tokens = model.generate(ids, count, lambda token, found: logits.append(found.copy()))
        return tokens, np.array(logits)


def mesh_program(
    model: str,
    mesh: str,
    seq: int,
    weights: Path | None = None,
    passes: dict[str, str] | None = None,
    device: str = "",
    batch: int = 1,
    decode: dict[str, str] | None = None,
) -> MeshProgram:
    """Compile ``model`` in f32; ``passes`` replaces specs of passes by name, ``decode`` those of
    that phase alone."""
    report = Diagnostics()
    loaded = load_any(model, report)
    request = CompileRequest(device=device, mesh=mesh, seq=seq, dtype="f32", batch=batch)
    modules = {}
    for phase in loaded.phases():
        own = (decode or {}) if phase == "decode" else {}
        manager = PassManager(pipeline_to("tile", laid_out({**(passes or {}), **own}, mesh)))
        modules[phase] = manager.run(graph_module(loaded, phase, request))
    source = weights or loaded.weights
    assert source is not None
    tensors = open_weights(source, loaded.config, None, report)
    return MeshProgram(loaded.name, modules, tensors, seq)


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write an emitted program."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
