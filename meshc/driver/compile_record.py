"""What happened in a compile, kept beside its program: ``record.json``, which ``meshc view`` reads.

It has the module after each pass, with the place in the source of each op; what the compiler had to
say, by pass; the lines of emitted files that the ops of the last module became; and predicted costs
by op. The same compile gives the same bytes, and nothing in it says where or when it was made.
``docs/view.md`` has the schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from meshc.backends import cuda
from meshc.backends.cuda.memory import memory_of
from meshc.backends.cuda.step_times import prediction_with_full_caches, step_with_full_caches
from meshc.backends.request import CompileRequest
from meshc.backends.target import Target, target_of
from meshc.cost.mesh_modules import searched
from meshc.cost.predictions import Prediction
from meshc.driver.block_timelines import block_timeline
from meshc.driver.compiled import Compiled
from meshc.driver.record_files import FORMAT, RECORD, TIMELINE
from meshc.driver.running import RunRequest
from meshc.driver.simulated_timelines import StepTrace, step_trace, timeline
from meshc.ir.module import Module
from meshc.ir.parser import parse_module
from meshc.ir.printer import op_lines, print_module
from meshc.passes.base import Pass
from meshc.passes.instruments import Instrument
from meshc.support.diagnostics import Diagnostic, Diagnostics, MeshcError, fail
from meshc.support.output import write_directory
from meshc.support.spans import Source, Span


@dataclass(frozen=True, eq=False)
class _Made:
    """A module as text, with the place of each op by its line; the pass that made it of another
    one, both None for what passes were given."""

    text: str
    level: str
    places: tuple[tuple[int, Span], ...]
    step: str = ""
    before: _Made | None = None


class Recording(Instrument):
    """Keeps what passes make, and what they add to ``report``."""

    def __init__(self, report: Diagnostics) -> None:
        self._report = report
        self._latest: dict[str, _Made] = {}
        self._given: _Made | None = None
        self._said = 0
        self._by_pass: dict[Diagnostic, tuple[str, str]] = {}

    def before(self, step: Pass, module: Module) -> None:
        text = print_module(module)
        self._given = self._latest.get(text) or _Made(text, module.level, _places(module))
        self._said = len(self._report.messages)

    def after(self, step: Pass, module: Module, seconds: float) -> None:
        text = print_module(module)
        made = _Made(text, module.level, _places(module), str(step), self._given)
        self._latest[text] = made
        for message in self._report.messages[self._said :]:
            self._by_pass[message] = str(module.option("phase", "")), str(step)

    def record(self, compiled: Compiled) -> str:
        """The record of ``compiled``, all of whose passes were watched, as JSON."""
        sources: dict[int, tuple[Source, int]] = {}
        modules = {**compiled.modules, **compiled.prompts}
        phases = [self._phase(name, module, compiled, sources) for name, module in modules.items()]
        messages = [self._message(message, sources) for message in compiled.report.messages]
        found = {
            "format": FORMAT,
            "kind": "compile",
            "model": compiled.loaded.name,
            "target": compiled.request.compile_to or compiled.request.target,
            "device": compiled.request.device_name,
            "phases": phases,
            "messages": messages,
            "sources": [
                {"name": _name(source), "text": source.text} for source, _ in sources.values()
            ],
        }
        return _json(found)

    def _phase(
        self,
        name: str,
        module: Module,
        compiled: Compiled,
        sources: dict[int, tuple[Source, int]],
    ) -> dict[str, Any]:
        text = print_module(module)
        last = self._latest.get(text) or _Made(text, module.level, _places(module))
        chain = [last]
        while chain[0].before is not None:
            chain.insert(0, chain[0].before)
        modules: list[dict[str, Any]] = []
        steps: list[dict[str, Any]] = []
        for number, made in enumerate(chain):
            if not number or made.text != chain[number - 1].text:
                places = [[line, *_place(span, sources)] for line, span in made.places]
                modules.append({"level": made.level, "text": made.text, "places": places})
            steps.append({"pass": made.step, "module": len(modules) - 1})
        return {
            "phase": name,
            "modules": modules,
            "steps": steps,
            "emitted": _emitted(name, module, compiled),
            "costs": _costs(chain),
            **({"memory": _memory(compiled)} if cuda.MANIFEST in compiled.files else {}),
        }

    def _message(
        self, message: Diagnostic, sources: dict[int, tuple[Source, int]]
    ) -> dict[str, Any]:
        phase, step = self._by_pass.get(message, ("", ""))
        return {
            "severity": message.severity,
            "code": message.code,
            "message": message.message,
            "phase": phase,
            "pass": step,
            "place": None if message.span is None else _place(message.span, sources),
            "notes": list(message.notes),
            "help": message.help,
        }

    def files(self, compiled: Compiled) -> dict[str, str]:
        """:meth:`record` and, of steps of tasks whose time is predicted, the timeline of their
        blocks, by file."""
        found = {RECORD: self.record(compiled)}
        timelines = [
            block_timeline(name, module, time.followed)
            for name, module in compiled.modules.items()
            if module.level == "task" and (time := step_with_full_caches(module)) is not None
        ]
        if timelines:
            found[TIMELINE] = _json({"format": FORMAT, "timelines": timelines})
        return found


class RunRecorder:
    """Keeps a compile and the last step of its run on the simulator of wafers in ``folder``."""

    def __init__(self, folder: Path, report: Diagnostics) -> None:
        self.folder = folder
        self.recording = Recording(report)
        self._trace: StepTrace | None = None

    def check(self, asked: CompileRequest, run: RunRequest) -> None:
        """Fail with ``bad-argument`` where there is no one program on that simulator to follow."""
        if not target_of(asked).FOLLOWED:
            fail(
                "bad-argument",
                f"--record follows programs on the simulator of wafers, not of {asked.target}",
                help="meshc compile MODEL -o DIR --record keeps what compiling says",
            )
        if run.trace is not None:
            fail("bad-argument", "--record and --profile both follow the run: give one of them")

    def watch(self, compiled: Compiled) -> StepTrace:
        """What is to be told of the run. Fails with ``bad-argument`` for two programs."""
        if any(name.endswith("/layout.csl") for name in compiled.files):
            fail(
                "bad-argument",
                "--record is of one program, and a prompt and the tokens behind it have two",
                help="let steps read the prompt: --phase decode",
            )
        compiled.files[RECORD] = self.recording.record(compiled)
        record = json.loads(compiled.files[RECORD])
        self._trace = step_trace(record, compiled.files)
        return self._trace

    def write(self, compiled: Compiled, report: Diagnostics) -> None:
        """Write the directory once the run has ended. Raises what writing one raises."""
        assert self._trace is not None
        record = json.loads(compiled.files[RECORD])
        found = {"format": FORMAT, "timelines": [timeline(record, compiled.files, self._trace)]}
        compiled.files[TIMELINE] = _json(found)
        write_directory(self.folder, compiled.files, compiled.facts, report=report)


def _json(found: Mapping[str, Any]) -> str:
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n"


def _places(module: Module) -> tuple[tuple[int, Span], ...]:
    return tuple((line, op.span) for line, op in op_lines(module) if op.span is not None)


def _place(span: Span, sources: dict[int, tuple[Source, int]]) -> list[int]:
    """Number of the source, line, column and length."""
    _, number = sources.setdefault(id(span.source), (span.source, len(sources)))
    return [number, span.line, span.column, span.length]


def _name(source: Source) -> str:
    """What a source is called wherever it lies."""
    return source.name if source.name.startswith("<") else PurePath(source.name).name


def _emitted(phase: str, module: Module, compiled: Compiled) -> dict[str, list[list[int]]]:
    """By emitted file, the line of an op in the module, and first and last line in the file."""
    found: dict[str, list[list[int]]] = {}
    if compiled.request.compile_to:
        return found
    target = target_of(compiled.request)
    for name in _files_of(phase, target, compiled.files):
        became = target.lines_of(compiled.request, module, compiled.files[name])
        if became is not None:
            found[name] = [
                [line, *stretch] for line, op in op_lines(module) for stretch in became.get(op, ())
            ]
    return found


def _files_of(phase: str, target: Target, files: Mapping[str, str]) -> list[str]:
    """The files that a phase was emitted as."""
    stem = target.stem(phase)
    name = f"{stem}{target.SUFFIX}"
    return [file for file in (name, f"{stem}/{name}") if file in files]


def _memory(compiled: Compiled) -> dict[str, Any]:
    """Bytes of a GPU that its programs take together, by use, and those that it has."""
    found = memory_of(cuda.from_json(compiled.files[cuda.MANIFEST]))
    uses = {"weights": found.weights, "caches": found.caches, "other buffers": found.buffers}
    return {"uses": uses, "room": compiled.request.the_device().global_memory_bytes or None}


def _costs(chain: list[_Made]) -> dict[str, Any] | None:
    """What a run is predicted to cost, op by op; None where nothing predicts it."""
    try:
        prediction = _predicted(chain)
    except MeshcError as refused:
        return {"refused": refused.diagnostics[0].message}
    if prediction is None:
        return None
    return {
        "model": prediction.model,
        "unit": prediction.unit,
        "clock_hz": prediction.clock_hz,
        "total": prediction.total,
        "bound": prediction.bound,
        "apart": list(prediction.apart),
        "left_out": list(prediction.left_out),
        "parts": [
            {"op": part.name, "times": part.times, **part.cost.parts()} for part in prediction.parts
        ],
    }


def _predicted(chain: list[_Made]) -> Prediction | None:
    last = parse_module(Source("record", chain[-1].text))
    if last.level == "task":
        return prediction_with_full_caches(last)
    dealt = [made for made in chain if made.level == "mesh"]
    if not dealt or "collectives_selected" not in parse_module(Source("", dealt[-1].text)).holds:
        return None
    return searched(parse_module(Source("record", dealt[-1].text)))
