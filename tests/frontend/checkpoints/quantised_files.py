"""Quantised checkpoints of Hugging Face, written element by element as their formats say."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from model_files import LLAMA_CONFIG

# Where output j of eight stands in a word of AWQ: `order_map` of AutoAWQ lists, for each place, the
# output that is there.
AWQ_PLACE = {0: 0, 2: 1, 4: 2, 6: 3, 1: 4, 3: 5, 5: 6, 7: 7}
TYPES = {"float32": "F32", "float16": "F16", "int32": "I32"}


def safetensors_of(tensors: Mapping[str, np.ndarray], bytes_are: str = "F8_E4M3") -> bytes:
    """A safetensors file of tensors of several types, of which uint8 stands for ``bytes_are``."""
    entries: dict[str, Any] = {}
    body = b""
    for name, tensor in tensors.items():
        raw = tensor.tobytes()
        place = [len(body), len(body) + len(raw)]
        kind = TYPES.get(tensor.dtype.name, bytes_are)
        entries[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": place}
        body += raw
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + body


def save(
    folder: Path,
    tensors: Mapping[str, np.ndarray],
    quantization: object,
    **changes: Any,
) -> Path:
    """A Hugging Face directory of `LLAMA_CONFIG`, changed."""
    config = {**LLAMA_CONFIG, **changes, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors_of(tensors))
    return folder


def _word(codes: Mapping[int, int]) -> int:
    """The signed word with the code of each place."""
    word = sum(code << 4 * place for place, code in codes.items())
    return word - (1 << 32) if word >> 31 else word


def int4_parts(
    stem: str, shape: tuple[int, int], group: int, kind: str, seed: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Random tensors of one weight of ``shape`` [outputs, inputs], and what they mean, float32.

    ``kind`` is ``awq``, ``gptq``, ``gptq_v2``, ``gptq symmetric`` or ``gptq reordered``.
    """
    random = np.random.default_rng(seed)
    outputs, inputs = shape
    groups = -(-inputs // group) if group > 0 else 1
    size = group if group > 0 else inputs
    codes = random.integers(0, 16, (inputs, outputs)).tolist()
    zeros = random.integers(1, 16, (groups, outputs)).tolist()
    if "symmetric" in kind:
        zeros = [[8] * outputs for _ in range(groups)]
    scales = (random.standard_normal((groups, outputs)) / 64).astype(np.float16)
    group_of = [i // size for i in range(inputs)]
    if "reordered" in kind:
        random.shuffle(group_of)
    place = AWQ_PLACE if kind == "awq" else {j: j for j in range(8)}
    less = 1 if kind.startswith("gptq") and kind != "gptq_v2" else 0

    def packed_outputs(rows: list[list[int]], less: int) -> np.ndarray:
        return np.array(
            [
                [
                    _word({place[j]: row[8 * n + j] - less for j in range(8)})
                    for n in range(outputs // 8)
                ]
                for row in rows
            ],
            np.int32,
        )

    if kind == "awq":
        words = packed_outputs(codes, 0)
    else:
        words = np.array(
            [
                [_word({j: codes[8 * n + j][o] for j in range(8)}) for o in range(outputs)]
                for n in range(inputs // 8)
            ],
            np.int32,
        )
    parts = {
        f"{stem}.qweight": words,
        f"{stem}.qzeros": packed_outputs(zeros, less),
        f"{stem}.scales": scales,
    }
    if kind != "awq":
        parts[f"{stem}.g_idx"] = np.array(group_of, np.int32)
    meaning = np.empty(shape, np.float32)
    for o in range(outputs):
        for i in range(inputs):
            at = group_of[i]
            meaning[o, i] = np.float32(codes[i][o] - zeros[at][o]) * np.float32(scales[at, o])
    return parts, meaning


def e4m3(code: int) -> float:
    """The number of a code: its exponent and fraction as those of a 16-bit float, whose bias is 8
    more."""
    bits = (code & 0x80) << 8 | (code & 0x7F) << 7
    return float(struct.unpack("<e", struct.pack("<H", bits))[0]) * 256.0


def fp8_parts(
    stem: str, shape: tuple[int, int], scales: str, seed: int, block: tuple[int, int] = (16, 24)
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """As `int4_parts`; ``scales`` is ``tensor``, ``channel`` or ``block``."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 128, shape).astype(np.uint8)
    codes[codes == 127] = 126
    codes |= random.integers(0, 2, shape).astype(np.uint8) << 7
    counts = {
        "tensor": (1, 1),
        "channel": (shape[0], 1),
        "block": (-(-shape[0] // block[0]), -(-shape[1] // block[1])),
    }[scales]
    factors = (random.random(counts) / 256).astype(np.float32)
    meaning = np.empty(shape, np.float32)
    for o in range(shape[0]):
        for i in range(shape[1]):
            at = {"tensor": (0, 0), "channel": (o, 0), "block": (o // block[0], i // block[1])}
            meaning[o, i] = np.float32(e4m3(int(codes[o, i]))) * factors[at[scales]]
    name = "weight_scale_inv" if scales == "block" else "weight_scale"
    stored = factors.reshape(()) if scales == "tensor" else factors
    return {f"{stem}.weight": codes, f"{stem}.{name}": stored}, meaning
