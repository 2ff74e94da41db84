"""Any damage to a small model file gives a model or a diagnostic, quickly and in little memory."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import (
    BPE_VOCABULARY,
    LLAMA_CONFIG,
    gguf_bytes,
    gguf_model_bytes,
    hf_tensors,
    model_config,
    safetensors_bytes,
)

from meshc.frontend.checkpoints import (
    config_from_gguf,
    load_tokenizer,
    open_checkpoint,
    read_config,
)
from meshc.support.diagnostics import MeshcError, known_codes

pytestmark = pytest.mark.models
pytest.importorskip("gguf")

CONFIG = model_config(hidden=4, heads=2, kv_heads=1, head_dim=2, ffn=3, vocab=5, layers=1)
TENSORS = hf_tensors(CONFIG)
SAFETENSORS = safetensors_bytes(TENSORS)
GGUF = gguf_model_bytes(CONFIG, TENSORS)
HF_CONFIG = json.dumps(
    {
        **LLAMA_CONFIG,
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "eos_token_id": [1, 2],
        "layer_types": ["full_attention"],
    }
).encode()
_EXTRA_BYTES = 300 << 20
_SECONDS = 1.0

# Bytes that matter to the formats, and any others.
_BYTES = st.one_of(
    st.sampled_from([b"\0", b"\xff", b"\xff" * 8, b"\x7f", b"{", b"[" * 99, b'"', b"-", b"9" * 40]),
    st.binary(min_size=1, max_size=9),
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, head: int) -> bytes:
    """``whole`` with a few pieces replaced, inserted or cut, mostly in its first ``head`` bytes."""
    raw = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        limit = min(len(raw), head) if draw(st.integers(0, 4)) else len(raw)
        place = draw(st.integers(0, limit))
        kind = draw(st.sampled_from(["replace", "insert", "delete", "cut"]))
        piece = draw(_BYTES)
        if kind == "replace":
            raw[place : place + len(piece)] = piece
        elif kind == "insert":
            raw[place:place] = piece
        elif kind == "delete":
            del raw[place : place + len(piece)]
        else:
            del raw[place:]
    return bytes(raw)


@pytest.fixture(scope="module")
def memory_limit() -> Iterator[None]:
    """An address-space limit a little above the present use, so that a bomb fails loudly."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + _EXTRA_BYTES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


def _survives(file: Path, raw: bytes, use: Callable[[Path], object]) -> None:
    file.write_bytes(raw)
    start = time.process_time()
    try:
        use(file)
    except MeshcError as error:
        for diagnostic in error.diagnostics:
            assert diagnostic.code in known_codes()
            diagnostic.render().encode("utf-8")
        assert len(str(error)) < 100_000
    assert time.process_time() - start < _SECONDS


def _read_weights(file: Path) -> None:
    checkpoint = open_checkpoint(file, CONFIG)
    for name in checkpoint.names():
        checkpoint.read(name)


@settings(max_examples=250, deadline=None)
@given(raw=damaged(GGUF, 1800))
@pytest.mark.usefixtures("memory_limit")
def test_gguf(folder: Path, raw: bytes) -> None:
    _survives(folder / "x.gguf", raw, _read_weights)
    _survives(folder / "x.gguf", raw, config_from_gguf)


@settings(max_examples=250, deadline=None)
@given(raw=damaged(SAFETENSORS, 1500))
@pytest.mark.usefixtures("memory_limit")
def test_safetensors(folder: Path, raw: bytes) -> None:
    _survives(folder / "x.safetensors", raw, _read_weights)


@settings(max_examples=250, deadline=None)
@given(raw=damaged(HF_CONFIG, len(HF_CONFIG)))
@pytest.mark.usefixtures("memory_limit")
def test_hf_config(folder: Path, raw: bytes) -> None:
    _survives(folder / "config.json", raw, read_config)


def _use_tokenizer(file: Path) -> None:
    tokenizer = load_tokenizer(file, model_config(vocab=300))
    tokenizer.decode(tokenizer.encode("ab 12"))


@settings(max_examples=150, deadline=None)
@given(raw=damaged(gguf_bytes(BPE_VOCABULARY), 6000))
@pytest.mark.usefixtures("memory_limit")
def test_gguf_vocabulary(folder: Path, raw: bytes) -> None:
    _survives(folder / "v.gguf", raw, _use_tokenizer)


@given(
    key=st.sampled_from([key for key in LLAMA_CONFIG if key != "architectures"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=6,
    ),
)
@settings(max_examples=120, deadline=None)
def test_any_value_at_any_key(folder: Path, key: str, value: object) -> None:
    raw = json.dumps({**LLAMA_CONFIG, key: value}).encode()
    _survives(folder / "config.json", raw, read_config)
