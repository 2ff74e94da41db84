"""llama.cpp's own library, as its Python package brings it: blocks that it writes, the numbers that
it reads off them, and the logits that it gives behind a prompt. Nothing of meshc is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

_F32 = 0
_CONTEXT = 256
"""Tokens of a context, of which llama.cpp has no fewer."""


@llama_cpp.llama_log_callback
def _quiet(level: int, text: bytes, data: object) -> None:
    """What the library says of its progress is of no use here."""


llama_cpp.llama_log_set(_quiet, None)
llama_cpp.llama_backend_init()


class _Traits(ctypes.Structure):
    """``ggml_type_traits`` of ggml.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleaved", ctypes.c_int64),
        ("bytes", ctypes.c_size_t),
        ("quantised", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float", ctypes.c_void_p),
    )


_FOLDER = Path(llama_cpp.__file__).parent / "lib"
_BASE = ctypes.CDLL(str(next(_FOLDER.glob("*ggml-base*"))))
_BASE.ggml_quantize_chunk.restype = ctypes.c_size_t
_BASE.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def quantised(tensor: np.ndarray, kind: str) -> np.ndarray:
    """``tensor`` in rows of the blocks that ggml's quantiser makes of it, no lane of more weight
    than another: uint8 [.., bytes of a row]."""
    number = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[number]
    numbers, lanes = np.ascontiguousarray(tensor, np.float32), tensor.shape[-1]
    found = np.zeros((*tensor.shape[:-1], lanes // elements * size), np.uint8)
    weights, rows = np.ones(lanes, np.float32), tensor.size // lanes
    _BASE.ggml_quantize_init(int(number))
    counts = map(ctypes.c_int64, (0, rows, lanes))
    given = _pointer(numbers), _pointer(found), *counts, _pointer(weights)
    assert _BASE.ggml_quantize_chunk(int(number), *given) == found.size
    return found


def dequantised(blocks: np.ndarray, kind: str, shape: Sequence[int]) -> np.ndarray:
    """The numbers that ggml's library reads off ``blocks``."""
    traits = _BASE.ggml_get_type_traits(int(gguf.GGMLQuantizationType[kind])).contents
    assert traits.name.decode().upper() == kind and traits.bytes
    take = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    found, blocks = np.zeros(shape, np.float32), np.ascontiguousarray(blocks)
    take(traits.to_float)(_pointer(blocks), _pointer(found), found.size)
    return found


@dataclass(frozen=True)
class Answer:
    """The most likely tokens behind a prompt, and the logits ``[tokens, vocab]`` of each."""

    tokens: list[int]
    logits: np.ndarray


def answer(file: Path, prompt: Sequence[int], count: int) -> Answer | None:
    """What llama.cpp answers on one thread, keys and values in f32; None for a file that it does
    not load."""
    how = llama_cpp.llama_model_default_params()
    how.n_gpu_layers, how.use_extra_bufts = 0, False
    model = llama_cpp.llama_model_load_from_file(str(file).encode(), how)
    if not model:
        return None
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = _CONTEXT
    settings.n_threads = settings.n_threads_batch = 1
    settings.type_k = settings.type_v = _F32
    settings.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, settings)
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    tokens: list[int] = []
    rows, given = [], list(prompt)
    for _ in range(count):
        read = (llama_cpp.llama_token * len(given))(*given)
        batch = llama_cpp.llama_batch_get_one(read, len(given))
        assert llama_cpp.llama_decode(context, batch) == 0
        row = llama_cpp.llama_get_logits_ith(context, -1)
        rows.append(np.ctypeslib.as_array(row, (vocab,)).copy())
        given = [int(rows[-1].argmax())]
        tokens += given
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return Answer(tokens, np.array(rows))


def tokenised(file: Path, texts: Sequence[str]) -> list[list[int]] | None:
    """The ids of ``texts`` by the vocabulary in ``file``, control tokens found in them; None for a
    file that llama.cpp does not load."""
    how = llama_cpp.llama_model_default_params()
    how.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(file).encode(), how)
    if not model:
        return None
    vocab, found = llama_cpp.llama_model_get_vocab(model), []
    for text in map(str.encode, texts):
        ids = (llama_cpp.llama_token * (2 * len(text) + 2))()
        count = llama_cpp.llama_tokenize(vocab, text, len(text), ids, len(ids), True, True)
        found.append([*ids[:count]])
    llama_cpp.llama_model_free(model)
    return found
