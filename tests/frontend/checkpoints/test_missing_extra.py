"""Without the optional packages the modules import, and a use says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from model_files import (
    BPE_VOCABULARY,
    gguf_bytes,
    gguf_model_bytes,
    gguf_pairs,
    hf_tensors,
    model_config,
    safetensors_bytes,
)

_PROGRAM = """
import sys
for name in ("gguf", "safetensors", "tokenizers", "torch", "transformers"):
    sys.modules[name] = None
from meshc.frontend import checkpoints
from meshc.support.diagnostics import MeshcError
path = sys.argv[2]
read = checkpoints.config_from_gguf if path.endswith(".gguf") else checkpoints.read_config
config = read(path)
try:
    use = checkpoints.open_checkpoint if sys.argv[1] == "weights" else checkpoints.load_tokenizer
    use(path, config)
except MeshcError as error:
    print(error)
else:
    print("fine")
"""


def _output(use: str, path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, use, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("use", "package"), [("weights", "gguf"), ("tokenizer", "tokenizers")])
def test_a_use_names_the_package_and_the_command(tmp_path: Path, use: str, package: str) -> None:
    config = model_config(vocab=300)
    file = tmp_path / "x.gguf"
    if use == "weights":
        file.write_bytes(gguf_model_bytes(config, hf_tensors(config)))
    else:
        file.write_bytes(
            gguf_bytes([*gguf_pairs(config, vocab_size=("u32", 300)), *BPE_VOCABULARY])
        )
    text = _output(use, file)
    assert text.startswith("error[missing-extra]")
    assert f"'{package}'" in text
    assert "pip install 'meshc[models]'" in text


def test_safetensors_need_no_package(tmp_path: Path) -> None:
    config = model_config()
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,'
        ' "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,'
        ' "vocab_size": 96, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}'
    )
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(hf_tensors(config)))
    assert _output("weights", tmp_path) == "fine\n"
