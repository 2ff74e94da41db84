"""What a compile gives: modules, files, remarks, and the program in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshc.backends import csl, cuda
from meshc.backends.cuda.step_times import predicted
from meshc.backends.request import CompileRequest
from meshc.driver import showing
from meshc.driver.emitted import Emitted
from meshc.driver.executable import Executable, Program
from meshc.driver.models import LoadedModel
from meshc.driver.weights import Array
from meshc.ir.module import Module
from meshc.support.diagnostics import Diagnostic, Diagnostics, fail
from meshc.support.scratch import scratch_folder


@dataclass(repr=False)
class Compiled:
    """What a compile gives: a module for each phase and the text of each file.

    ``report`` holds warnings and remarks; ``facts`` what the manifest of an output directory says;
    ``loaded`` is the model. ``prompts`` are the tasks of kernels that read chunks of prompts, of a
    program for GPUs that has such, by the names of these, those that read more tokens at once
    first.
    """

    request: CompileRequest
    modules: dict[str, Module]
    files: dict[str, str]
    report: Diagnostics
    facts: dict[str, object]
    loaded: LoadedModel
    prompts: Mapping[str, Module] = field(default_factory=dict)

    @property
    def remarks(self) -> tuple[Diagnostic, ...]:
        """Warnings, remarks and what was missed, in the order in which they were found."""
        return tuple(self.report.messages)

    @property
    def makes_tokens(self) -> bool:
        """Whether the program is a language model that maps tokens to tokens."""
        return self.emitted.makes_tokens

    @property
    def emitted(self) -> Emitted:
        """What running it needs."""
        return Emitted(self.loaded, self.request, self.files, self.facts, self.weight_names)

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Logical tensors that the program reads, those of the host included."""
        found = dict.fromkeys(self.host_weights)
        if cuda.MANIFEST in self.files:
            program = cuda.from_json(self.files[cuda.MANIFEST])
            return tuple(dict.fromkeys(s for w in program.weights.values() for s in w.sources))
        for module in self.modules.values():
            weights = {b.value for b in module.buffers if b.role == "weight"}
            known = module.constants
            ports = (p for p in module.ports if p.direction == "in" and p.buffer in weights)
            found |= dict.fromkeys(p.name for p in ports if p.name not in known)
        return tuple(found)

    @property
    def host_weights(self) -> tuple[str, ...]:
        """Tensors that only the host reads: the tables of embeddings and of learned positions."""
        tables = (self.facts.get(name) for name in ("embedding", "positions"))
        return tuple(str(table) for table in tables if table)

    def use_of_a_core(self, phase: str) -> list[str]:
        """Lines on what the program of ``phase`` uses of a core; none for emitted Python."""
        if cuda.MANIFEST in self.files:
            lines = cuda.summary(cuda.from_json(self.files[cuda.MANIFEST]))
            module = self.modules[phase]
            time = predicted(module) if module.level == "task" else ""
            return [*lines, time] if time else lines
        reports = [text for name, text in self.files.items() if name.endswith("/report.json")]
        if len(self.modules) == 1:
            reports = [text for name, text in self.files.items() if name == "report.json"]
        places = dict(zip(self.modules, reports, strict=False))
        return csl.summary(json.loads(places[phase])) if phase in places else []

    def summary(self) -> list[str]:
        """A few lines: what was compiled onto what."""
        used = {phase: self.use_of_a_core(phase) for phase in self.modules}
        lines = showing.summary(self.loaded.name, self.request, self.modules, used)
        if len(self.modules) > 1 and (text := self.files.get("report.json")):
            lines.append("  one program for both phases")
            lines += [f"    {line}" for line in csl.summary(json.loads(text))]
        return lines

    def load(
        self, weights: Mapping[str, Array] | str | Path | None = None, backend: str = ""
    ) -> Executable:
        """The program in this process, with its weights on its cores.

        ``weights`` are arrays by the names of the model's parameters, or the path of a checkpoint
        or of a folder of ``NAME.npy``; by default those that the model itself names, or an
        installed package. ``backend`` is one of the target's (docs/command-line.md). Raises
        ``no-program`` for IR, ``bad-argument`` for a target that does not run here, and what
        reading weights raises.
        """
        if self.request.compile_to:
            fail(
                "no-program",
                f"'{self.loaded.name}' was compiled to the {self.request.compile_to} level only",
                help="meshc.run(compiled.modules[PHASE], arrays) interprets a module",
            )
        with scratch_folder() as scratch:
            program = self.written(scratch / "program", weights)
            given = weights if isinstance(weights, Mapping) else None
            return Executable(program, given, backend, self.report)

    def written(
        self, folder: Path, weights: Mapping[str, Array] | str | Path | None = None
    ) -> Program:
        """The program in ``folder``, into which its files are written."""
        return self.emitted.written(folder, weights)

    def __repr__(self) -> str:
        return showing.short(self.loaded.name, self.request, self.modules, self.files, self.remarks)

    def _repr_html_(self) -> str:
        """The same for notebooks: a summary, files with their sizes, and remarks."""
        return showing.html(repr(self), self.summary(), self.files, self.remarks)
