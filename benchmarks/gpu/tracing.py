"""When blocks of a step of tasks begin each phase and have what it needs, by the GPU's clock.

Statements are put into the emitted text: at the head of each phase, and behind what makes the
columns of its products, by the first thread of each block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from prepared import Prepared
from programs import Step

from meshc.backends.cuda.launches import Launch
from meshc.backends.cuda.program import Buffer, StepProgram

_NOTE = "if (me == 0) trace[({layer} * {slots} + {slot}) * mc::blocks() + mc::block()] = mc_now();"
_NOW = """
MC_INLINE unsigned long long mc_now() {
    unsigned long long now = 1;
#ifndef MC_EXECUTOR
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
#endif
    return now;
}

"""
_LOOP = re.compile(r"    for \(int (\w+) = 0;")
_HEAD = re.compile(r"^( *)// ---- (\w+)", re.MULTILINE)


def traced(found: Prepared) -> Prepared:
    """The same program, whose step writes a trace of its phases."""
    file = next(f for f in found.texts if f.startswith("step"))
    text, names = _noted(found.texts[file])
    program = found.program
    layers = _layers(program)
    slots = 2 * len(names) + 1
    words = 2 * layers * slots * program.kernels["step"].blocks
    stages = [_told(launches) for launches in (program.before, program.after)]
    buffers = program.buffers | {
        "trace": Buffer("f32", (words,), "scratch"),
    }
    program = replace(program, buffers=buffers, before=stages[0], after=stages[1])
    text = f"// phases: {' '.join(names)}\n{text}"
    return replace(found, program=program, texts=found.texts | {file: text})


def traces(step: Step, program: StepProgram) -> Mapping[str, NDArray[np.generic]]:
    """Nanoseconds [layer, slot, block] of the last step, 0 where nothing was written: of each
    phase its beginning and when its first columns were there, then the end; and their names."""
    file = next(f for f in step.texts if f.startswith("step"))
    names = step.texts[file].split("\n", 1)[0].removeprefix("// phases: ").split(" ")
    blocks = program.kernels["step"].blocks
    words = step.read("trace", np.uint64)
    found = words.reshape(_layers(program), 2 * len(names) + 1, blocks)
    return {"when": found, "names": np.array(names)}


def _layers(program: StepProgram) -> int:
    return max(weight.layers for weight in program.weights.values()) + 1


def _told(launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
    return tuple(
        replace(one, arguments=(*one.arguments, "trace")) if one.kernel == "step" else one
        for one in launches
    )


def _noted(text: str) -> tuple[str, list[str]]:
    head, compute, tail = text.partition("    // ---- Compute\n")
    lines = tail.split("\n")
    names = [m[2] for line in lines if (m := _HEAD.match(line))]
    slots = 2 * len(names) + 1
    made: list[str] = []
    at, waiting, fetching, layer, around = -1, False, False, "0", "0"
    for line in lines:
        if m := _LOOP.match(line):
            around = m[1]
        if m := _HEAD.match(line):
            at += 1
            layer = around if len(m[1]) > 4 else "0"
            made.append(line)
            waiting = True
            continue
        if line.startswith("    if (me == 0 && mc::grid_leave"):
            made.append("    " + _NOTE.format(layer="0", slots=slots, slot=slots - 1))
        made.append(line)
        if waiting and line.strip() == "{":
            made.append(_NOTE.format(layer=layer, slots=slots, slot=2 * at))
            waiting = False
        elif line.strip() == "mc::group_sync(1, WORKERS);" and fetching:
            made.append(_NOTE.format(layer=layer, slots=slots, slot=2 * at + 1))
            fetching = False
        elif line.strip().startswith("mc::fetch<"):
            fetching = True
        elif re.match(r" *mc::(put|copy)_\w*columns", line) and line.rstrip().endswith(";"):
            made.append(_NOTE.format(layer=layer, slots=slots, slot=2 * at + 1))
    body = head.replace('extern "C"', _NOW + 'extern "C"', 1)
    signature = r"(mc::u32\* (?:runs|met))\) \{"
    body = re.sub(signature, r"\1, unsigned long long* trace) {", body, count=1)
    return body + compute + "\n".join(made), names
