"""A directory that runs without meshc: machine code, packed weights, hosts in Python and C++."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from meshc.backends.cuda.emit import MANIFEST
from meshc.backends.cuda.launches import Launch, part_of
from meshc.backends.cuda.packing.kept import places_in_file, write_packed
from meshc.backends.cuda.program import FORMAT, Buffer, StepProgram, Weight, numbered
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.backends.templates import render
from meshc.ir.choices import MOST_CHOICES
from meshc.support.diagnostics import fail
from meshc.support.large_files import PAGE_BYTES
from meshc.support.native import BuildError
from meshc.support.schemas import json_schema

Array = NDArray[Any]
_HERE = Path(__file__).parent
WEIGHTS = "weights.packed"
_OF_KERNELS = ("blocks", "threads", "cluster", "shared_bytes", "least_blocks")
_NUMBER, _NOTHING = -1, -2
"""What arguments of launches are that are no memory: a number, and nothing."""


def standalone_files(
    program: StepProgram,
    texts: Mapping[str, str],
    tensors: Mapping[str, Array],
    stop: Sequence[int],
) -> dict[str, str | bytes | Callable[[Path], None]]:
    """What a directory of ``program`` has beside its ``texts``, or in place of them, by name.

    ``tensors`` are packed when the weights are written; ``stop`` are the tokens that end a text.
    Raises ``bad-argument`` for a program of several GPUs, and ``cuda-toolkit`` where kernels
    cannot be compiled.
    """
    if program.nodes is not None:
        fail(
            "bad-argument",
            "--standalone writes programs of one GPU, and layers of several nodes are handed on by "
            "torch.distributed",
            help="leave --nodes out, or run the directory with meshc",
        )
    if program.columns > 1:
        fail(
            "bad-argument",
            "--standalone writes hosts that make no drafts",
            help="leave --drafts out, or run the directory with meshc",
        )
    if program.ranks is not None:
        fail(
            "bad-argument",
            "--standalone writes programs of one GPU, and several need torch.distributed",
            help="leave --gpus out, or run the directory with meshc",
        )
    files: dict[str, str | bytes | Callable[[Path], None]] = {
        Path(file).with_suffix(".cubin").name: _machine_code(texts[file], program.device.arch)
        for file in sorted({kernel.file for kernel in program.kernels.values()})
    }
    files |= {
        WEIGHTS: lambda path: _write_weights(path, program, tensors),
        MANIFEST: program.to_json(),
        "manifest.schema.json": json.dumps(json_schema("manifest"), indent=1) + "\n",
        "run.py": render(
            "meshc.backends.cuda",
            "standalone.py.jinja",
            format=FORMAT,
            stop=tuple(stop),
            page_bytes=PAGE_BYTES,
            batch=program.batch,
            most_steps=program.most_steps,
            most_choices=MOST_CHOICES,
        ),
        "model.hpp": render("meshc.backends.cuda", "model.hpp.jinja", **_data(program, stop)),
        "example.cc": (_HERE / "templates" / "example.cc").read_text(encoding="utf-8"),
    }
    return files


def _machine_code(text: str, arch: str) -> bytes:
    try:
        return compile_cubin(text, arch).data
    except BuildError as problem:
        fail("cuda-toolkit", f"a kernel cannot be compiled: {problem}")


def _write_weights(path: Path, program: StepProgram, tensors: Mapping[str, Array]) -> None:
    _, size = places_in_file(program.weights)
    opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.truncate(opened, size)
        write_packed(opened, program.weights, tensors)
    finally:
        os.close(opened)


def _data(program: StepProgram, stop: Sequence[int]) -> dict[str, object]:
    """What the header in C++ says of the program: memory and kernels by number."""
    places, _ = places_in_file(program.weights)
    held: dict[str, Weight | Buffer] = {**program.weights, **program.buffers}
    numbers = {name: number for number, name in enumerate(held)}
    kernels = {name: number for number, name in enumerate(program.kernels)}

    def argument(given: str | int, layer: int) -> tuple[int, int]:
        if isinstance(given, int):
            return _NUMBER, given
        if not given:
            return _NOTHING, 0
        name, part = part_of(given, layer)
        memory = held[name]
        return numbers[name], 0 if part is None else part * (memory.bytes // _parts(memory))

    def resolved(launches: Sequence[tuple[Launch, int]]) -> list[dict[str, object]]:
        return [
            {
                "kernel": kernels[launch.kernel],
                "arguments": [argument(given, layer) for given in launch.arguments],
            }
            for launch, layer in launches
        ]

    assert program.choice is not None
    return {
        "program": program,
        "stop": stop,
        "kernels": [
            {
                **{key: getattr(kernel, key) for key in _OF_KERNELS},
                "name": name,
                "file": Path(kernel.file).with_suffix(".cubin").name,
                "whole_grid": str(kernel.whole_grid).lower(),
            }
            for name, kernel in program.kernels.items()
        ],
        "memory": [
            {"name": name, "bytes": one.bytes, "packed_at": places.get(name, -1)}
            for name, one in held.items()
        ],
        "tables": [
            {
                "cosines": numbered("cosines", place),
                "sines": numbered("sines", place),
                "frequencies": frequencies,
            }
            for place, frequencies in enumerate(program.frequencies)
        ],
        "step": resolved(program.launches()),
        "choice": resolved([(program.choice, 0)]),
        "ends": program.buffers["ends"].shape[0],
        "most_choices": MOST_CHOICES,
        "readers": [
            {
                **{key: getattr(reader, key) for key in ("inputs", "tokens", "least")},
                "gives_logits": str(reader.gives_logits).lower(),
                "with_logits": resolved(reader.launches(True)),
                "without": resolved(reader.launches(False)),
            }
            for reader in program.prefills
        ],
    }


def _parts(memory: Weight | Buffer) -> int:
    """How many parts memory has: layers of weights, or places of the first dim of a buffer."""
    return max(memory.layers, 1) if isinstance(memory, Weight) else memory.shape[0]
