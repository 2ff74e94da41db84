"""A checkpoint of 16 GB: what compiling and packing take of memory."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from meshc.frontend.checkpoints import catalogue_config
from meshc.frontend.checkpoints.logical import logical_tensors
from meshc.frontend.checkpoints.safetensors_reader import INDEX_NAME

MODEL = "llama-3-8b"
CATALOGUE = Path(__file__).parents[2] / "meshc" / "frontend" / "catalogue"
SHARDS = 4
MOST_BYTES = 2_500_000_000
FREE_BYTES = 36 << 30
"""On the disk: packed weights are float32."""

# Prints the most memory that the process had, in bytes, as its last line.
COMPILE = """
import resource, sys
from meshc.cli import main
code = main(sys.argv[1:])
print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""


def _names_and_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    for tensor in logical_tensors(catalogue_config(MODEL)):
        for layer in range(max(1, tensor.layers)):
            for name in tensor.stored_names(layer):
                yield name, tensor.layout.stored_shape()


def _sparse_checkpoint(folder: Path) -> int:
    """Shards of bf16 zeros that take no disk, but for the first and last element of each tensor,
    which are 1 and 2. Returns their bytes."""
    folder.mkdir()
    shutil.copy(CATALOGUE / f"{MODEL}.json", folder / "config.json")
    tensors = list(_names_and_shapes())
    weight_map, total = {}, 0
    for at in range(SHARDS):
        file = folder / f"model-{at + 1:05}-of-{SHARDS:05}.safetensors"
        header, end = {}, 0
        for name, shape in tensors[at::SHARDS]:
            size = 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
            end += size
            weight_map[name] = file.name
        text = json.dumps(header).encode()
        with file.open("wb") as stream:
            stream.write(struct.pack("<Q", len(text)) + text)
            stream.truncate(8 + len(text) + end)
            for facts in header.values():
                first, last = facts["data_offsets"]
                for offset, value in ((first, 0x3F80), (last - 2, 0x4000)):
                    stream.seek(8 + len(text) + offset)
                    stream.write(struct.pack("<H", value))
        total += file.stat().st_size
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return total


@pytest.mark.slow
def test_16_gb_are_packed_in_bounded_memory(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < FREE_BYTES:
        pytest.skip("packed weights need 36 GiB of disk")
    source, target = tmp_path / "model", tmp_path / "program"
    assert _sparse_checkpoint(source) > 16e9
    words = ["compile", str(source), "--mesh", "16x16", "--seq", "64", "--weights", str(source)]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, *words, "-o", str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout.splitlines()[-1])
    print(f"peak memory {peak / 1e9:.2f} GB")
    head = np.load(target / "weights" / "lm_head.npy", mmap_mode="r")
    assert head.shape == (4096, 128256) and (head[0, 0], head[-1, -1]) == (1, 2)
    down = np.load(target / "weights" / "w_down.npy", mmap_mode="r")
    assert down.shape == (32, 14336, 4096) and (down[31, 0, 0], down[31, -1, -1]) == (1, 2)
    shutil.rmtree(target)
    assert peak <= MOST_BYTES
