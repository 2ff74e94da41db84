"""How fast weights of a checkpoint are packed for a GPU, and what a second start takes.

    python benchmarks/packing_speed.py [--json] [--layers 2] [--model llama-3-8b] [--repeats 5]

Writes a checkpoint of so many layers and few words, random numbers of each type, to a temporary
folder, and packs the weights of its layers in memory: on one core, in turn with a copy of the same
bytes, both by processor time, and on all. Then a program starts twice with a folder for packed
weights: the first time packs and writes them, the second maps and proves them. That is held against
reading the file into a buffer.

The exit is 1 where weights are packed at less than a quarter of the speed of the copy, or the
second start takes more than 1.2 times the time of reading.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from measuring import interleaved, table
from numpy.typing import NDArray

from meshc.backends.cuda import Keeping, StepProgram, from_json
from meshc.backends.cuda.packing import all_packed, kept, pieces
from meshc.driver import CompileRequest, compile_loaded, load_any, open_weights
from meshc.frontend.checkpoints import catalogue_config
from meshc.frontend.checkpoints.logical import logical_tensors
from meshc.support.diagnostics import Diagnostics

CATALOGUE = Path(__file__).parents[1] / "meshc" / "frontend" / "catalogue"
LEAST_SHARE, MOST_RATIO = 0.25, 1.2
SOURCES = {
    "bf16": ("BF16", 2), "f16": ("F16", 2), "f32": ("F32", 4), "fp8": ("F8_E4M3", 1),
    "fp8 in blocks": ("F8_E4M3", 1),
}  # fmt: skip
"""Types of files, and bytes of an element."""
CASES = (
    ("bf16", "bf16"), ("f16", "f16"), ("bf16", "f16"), ("f16", "bf16"), ("f32", "bf16"),
    ("f32", "f16"), ("fp8", "bf16"), ("fp8", "f16"), ("fp8 in blocks", "bf16"),
)  # fmt: skip
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCK = 128
"""Outputs and inputs that have a scale in common, in blocks; else a tensor has one."""
OF_FP8 = {"fp8": FP8, "fp8 in blocks": FP8 | {"weight_block_size": [BLOCK, BLOCK]}}
WORDS = 1024
"""Of the vocabulary: tables of words are packed as other matrices are."""


@dataclass(frozen=True)
class Packing:
    """GB of packed weights in a second, from files of one type to words of another."""

    source: str
    target: str
    copy: float
    one_core: float
    all_cores: float

    @property
    def share(self) -> float:
        """Of the speed of a copy on one core, by one core."""
        return self.one_core / self.copy


@dataclass(frozen=True)
class Start:
    """Seconds until weights of so many bytes can be given to a GPU."""

    packed_bytes: int
    first: float
    second: float
    reading: float

    @property
    def ratio(self) -> float:
        """Of the second start to reading the file."""
        return self.second / self.reading


def drawn(source: str, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Elements of a file, all of them finite numbers near 1."""
    if source == "f32":
        return 1 + rng.random(count, np.float32)
    if source in OF_FP8:
        return rng.integers(0x30, 0x40, count, np.uint8)
    exponent = 0x3F80 if source == "bf16" else 0x3C00
    return (rng.integers(0, 0x80, count, np.uint16) + exponent).astype(np.uint16)


def tensors_of(model: str, layers: int, source: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Names, shapes and types of a checkpoint: in fp8 the matrices of layers, the rest in bf16."""
    for tensor in logical_tensors(replace(catalogue_config(model), vocab=WORDS)):
        for layer in range(min(layers, tensor.layers) if tensor.per_layer else 1):
            for name in tensor.stored_names(layer):
                shape = tensor.layout.stored_shape()
                matrix = tensor.per_layer and len(shape) == 2
                kind = "bf16" if source in OF_FP8 and not matrix else source
                yield name, shape, kind
                if kind == "fp8":
                    yield f"{name}_scale", (), "f32"
                elif kind in OF_FP8:
                    blocks = tuple(-(-extent // BLOCK) for extent in shape)
                    yield f"{name}_scale_inv", blocks, "f32"


def write_checkpoint(folder: Path, model: str, layers: int, source: str) -> None:
    """A checkpoint of the first ``layers`` of a model of the catalogue."""
    config = json.loads((CATALOGUE / f"{model}.json").read_text())
    config |= {"num_hidden_layers": layers, "vocab_size": WORDS}
    config |= {"bos_token_id": 1, "eos_token_id": 2}
    if source in OF_FP8:
        config["quantization_config"] = OF_FP8[source]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header, end, rng = {}, 0, np.random.default_rng(0)
    listed = list(tensors_of(model, layers, source))
    for name, shape, kind in listed:
        word, size = SOURCES[kind]
        nbytes = size * int(np.prod(shape))
        header[name] = {"dtype": word, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for _, shape, kind in listed:
            stream.write(drawn(kind, int(np.prod(shape)), rng).data)


def program_for(folder: Path, dtype: str) -> StepProgram:
    """The decode step of the checkpoint in ``folder``."""
    report = Diagnostics()
    request = CompileRequest(target="cuda", dtype=dtype, seq=256)
    compiled = compile_loaded(load_any(str(folder), report), request, (), report)
    return from_json(compiled.files["manifest.json"])


def opened(folder: Path) -> Mapping[str, NDArray[Any]]:
    """The tensors of the checkpoint in ``folder``."""
    return open_weights(folder, load_any(str(folder), Diagnostics()).config, None, Diagnostics())


def packing(folder: Path, source: str, target: str, repeats: int) -> Packing:
    """How fast the weights of layers are packed in memory."""
    program, tensors = program_for(folder, target), opened(folder)
    every = [weight for weight in program.weights.values() if weight.layers]
    largest = max(weight.bytes for weight in every)
    result, other = np.ones(largest // 2, np.uint16), np.ones(largest // 2, np.uint16)

    def copy() -> None:
        for weight in every:
            np.copyto(result[: weight.bytes // 2], other[: weight.bytes // 2])

    def alone() -> None:
        for weight in every:
            for piece in pieces.pieces_of(weight, tensors):
                piece.fill(result[piece.first : piece.first + piece.count])

    def together() -> None:
        for weight in every:
            pieces.at_once(
                pieces.pieces_of(weight, tensors),
                lambda piece: piece.fill(result[piece.first : piece.first + piece.count]),
            )

    gigabytes = sum(weight.bytes for weight in every) / 1e9
    of_copy, of_one, of_all = interleaved((copy, alone, together), repeats)
    seconds = (of_copy.cpu_median, of_one.cpu_median, of_all.wall_median)
    return Packing(source, target, *(gigabytes / each for each in seconds))


def starting(folder: Path, kept_in: Path, dtype: str, repeats: int) -> Start:
    """A first start and later ones, beside reading the file into a buffer of its size."""
    program = program_for(folder, dtype)
    _, size = kept.places_in_file(program.weights)
    buffer = np.ones(size, np.uint8)

    def start() -> None:
        for _ in all_packed(program, opened(folder), Keeping(kept_in, sys.exit)):
            pass

    def first() -> None:
        shutil.rmtree(kept_in, ignore_errors=True)
        start()

    def read() -> None:
        (file,) = kept_in.glob("*/*")
        done = 0
        with file.open("rb", buffering=0) as stream:
            while done < size:
                done += stream.readinto(buffer[done:].data)

    times = interleaved((first, start, read), repeats)
    return Start(size, *(each.wall_median for each in times))


def main() -> int:
    """Measure and print; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", default="llama-3-8b")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    packed, start = [], None
    with tempfile.TemporaryDirectory() as scratch:
        for source in SOURCES:
            folder = Path(scratch) / source
            write_checkpoint(folder, options.model, options.layers, source)
            for each, target in CASES:
                if each == source:
                    packed.append(packing(folder, source, target, options.repeats))
            if source == "bf16":
                start = starting(folder, Path(scratch) / "kept", "bf16", options.repeats)
            shutil.rmtree(folder)
    assert start is not None
    if options.json:
        print(json.dumps({"packing": [asdict(one) for one in packed], "start": asdict(start)}))
    else:
        rows = [
            (p.source, p.target, *(f"{x:.2f}" for x in (p.copy, p.one_core, p.all_cores, p.share)))
            for p in packed
        ]
        header = ("file", "packed", "copy GB/s", "one core GB/s", "all cores GB/s", "of the copy")
        print(table(header, rows))
        print(
            f"{start.packed_bytes / 1e9:.2f} GB: first start {start.first:.2f} s, second "
            f"{start.second:.2f} s, {start.ratio:.2f} times reading the file, {start.reading:.2f} s"
        )
    slow = [p for p in packed if p.share < LEAST_SHARE]
    return int(bool(slow) or start.ratio > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
