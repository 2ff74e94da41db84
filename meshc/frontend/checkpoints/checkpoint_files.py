"""Finding the weights at a path, and making sure that they belong to the model."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import NoReturn

from meshc.frontend.checkpoints.bounded_files import list_directory, open_regular
from meshc.frontend.checkpoints.fields import brief
from meshc.frontend.checkpoints.gguf.described_model import config_from_header
from meshc.frontend.checkpoints.gguf.gguf_weights import GgufWeights
from meshc.frontend.checkpoints.gguf.parts import first_of_parts, read_gguf_header
from meshc.frontend.checkpoints.hf.config import read_config
from meshc.frontend.checkpoints.hf.text_half import of_text_half
from meshc.frontend.checkpoints.model_config import ModelConfig
from meshc.frontend.checkpoints.quantised.method import Mxfp4, quantization_beside
from meshc.frontend.checkpoints.quantised.mxfp4 import Mxfp4Weights
from meshc.frontend.checkpoints.quantised.tensors import QuantisedWeights
from meshc.frontend.checkpoints.safetensors_reader import INDEX_NAME, read_safetensors, read_sharded
from meshc.frontend.checkpoints.tensor_source import TensorSource
from meshc.frontend.checkpoints.tied_head import stores_own_head
from meshc.frontend.families import family_named
from meshc.support.diagnostics import Diagnostics, MeshcError, fail

_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# torch.save writes a zip archive; older versions and plain pickle start with a protocol byte.
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_ADAPTER = "adapter_config.json"
# Fields that may differ between a checkpoint and the model it is used for.
_FREE_FIELDS = frozenset({"name", "max_positions", "bos_id", "eos_ids", "dtype"})


def find_source(path: Path, config: ModelConfig) -> tuple[TensorSource, bool]:
    """The tensors at ``path``, and whether they have GGUF names. Errors: as `open_checkpoint`."""
    file = _weights_file(path) if os.path.isdir(path) else path
    source, gguf_names = _opened(file)
    beside = file.parent / "config.json"
    if isinstance(source, GgufWeights):
        _check_same_maths(config, config_from_header(source.header), str(file))
    elif os.path.isfile(file.parent / _ADAPTER):
        _refuse_adapter(file.parent / _ADAPTER)
    elif os.path.isfile(beside):
        stored = read_config(beside)
        if not config.tied_embeddings and stores_own_head(source, family_named(stored.family)):
            stored = replace(stored, tied_embeddings=False)
        _check_same_maths(config, stored, str(beside))
    return source, gguf_names


def _opened(file: Path) -> tuple[TensorSource, bool]:
    """The tensors in ``file``, and whether they have GGUF names."""
    if file.suffix.lower() in _PICKLE_SUFFIXES:
        _refuse_pickle(file)
    stream, _ = open_regular(file, "weights file")
    with stream:
        start = stream.read(4)
    if file.suffix.lower() == ".gguf" or start == b"GGUF":
        return GgufWeights(read_gguf_header(file)), True
    if start.startswith(_PICKLE_STARTS) and file.suffix.lower() != ".safetensors":
        _refuse_pickle(file)
    beside = file.parent / "config.json"
    sharded = file.suffix.lower() == ".json"
    source = of_text_half(read_sharded(file) if sharded else read_safetensors(file))
    quantization = quantization_beside(beside) if os.path.isfile(beside) else None
    if isinstance(quantization, Mxfp4):
        return Mxfp4Weights(source), False
    return (QuantisedWeights(source, quantization) if quantization else source), False


def checkpoint_config(path: Path, diagnostics: Diagnostics | None = None) -> ModelConfig:
    """As :func:`read_config`; a model whose weights, in the same folder, have a head of their own
    is not tied, whatever its config says. Weights that cannot be read say nothing."""
    config = read_config(path, diagnostics)
    folder = path if os.path.isdir(path) else path.parent
    if not config.tied_embeddings:
        return config
    try:
        source, gguf_names = _opened(_weights_file(folder))
        own = not gguf_names and stores_own_head(source, family_named(config.family))
    except MeshcError:
        return config
    if own and diagnostics is not None:
        message = "the config says that the head is the embedding, but the weights have another one"
        diagnostics.remark("weights-own-head", f"{message}, which is used")
    return replace(config, tied_embeddings=not own)


def _weights_file(folder: Path) -> Path:
    for name in ("model.safetensors", INDEX_NAME):
        if os.path.isfile(folder / name):
            return folder / name
    entries = list_directory(folder)
    for suffix in (".safetensors", ".gguf"):
        files = [file for file in entries if file.suffix.lower() == suffix]
        one = files[0] if len(files) == 1 else first_of_parts(files)
        if one is not None:
            return one
        if files:
            fail(
                "weights-not-found",
                f"'{folder}' holds {len(files)} {suffix} files and no index '{INDEX_NAME}'",
                help="give the path of one file",
            )
    pickles = [file for file in entries if file.suffix.lower() in _PICKLE_SUFFIXES]
    if pickles:
        _refuse_pickle(pickles[0])
    fail(
        "weights-not-found",
        f"'{folder}' holds no weights",
        help="a .safetensors file, a safetensors index or a .gguf file is looked for",
    )


def _refuse_pickle(path: Path) -> NoReturn:
    fail(
        "pickle-refused",
        f"'{path}' is a pickle: reading it could run any program it contains",
        help="convert it to safetensors, in a place where you trust it: "
        "model.save_pretrained(DIR) in Hugging Face transformers",
    )


def _refuse_adapter(path: Path) -> NoReturn:
    """Hugging Face transformers adds an adapter that lies beside weights to them."""
    fail(
        "weights-adapter",
        f"'{path}' belongs to an adapter, which meshc does not add to weights",
        help="merge it into them (merge_and_unload of the peft package), or remove the file to "
        "run the model without it",
    )


def _check_same_maths(config: ModelConfig, stored: ModelConfig, label: str) -> None:
    """Weights of another model of the same shapes would load and be wrong without a word."""
    notes = []
    for field in fields(ModelConfig):
        wanted, found = getattr(config, field.name), getattr(stored, field.name)
        if field.name not in _FREE_FIELDS and wanted != found:
            notes.append(f"{field.name}: {_show(wanted)} in the model, {_show(found)} in the file")
    if notes:
        fail(
            "weights-config-mismatch",
            f"'{label}' describes another model than '{config.name}'",
            notes=notes,
            help="give the weights of this model, or compile the model the file describes",
        )


def _show(value: object) -> str:
    plain = value is None or isinstance(value, bool | int | float | str)
    return brief(value) if plain else str(value)
