"""Checkpoints of published models: their configs, weights and tokenizers.

Reads Hugging Face directories and GGUF files. Every fault of a file is a diagnostic, never a
traceback; files are bounded in size, depth and counts before anything is built from them.
"""

from meshc.frontend.models.catalogue import catalogue_config, catalogue_names
from meshc.frontend.models.config import (
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
)
from meshc.frontend.models.family_model import model_of, model_parameters
from meshc.frontend.models.gguf_config import config_from_gguf
from meshc.frontend.models.hf_config import read_config
from meshc.frontend.models.logical import parameter_count
from meshc.frontend.models.packaged import find_packaged_weights
from meshc.frontend.models.tokenizer import Tokenizer, load_tokenizer
from meshc.frontend.models.weights import Checkpoint, open_checkpoint

__all__ = [
    "Checkpoint",
    "LinearScaling",
    "Llama3Scaling",
    "ModelConfig",
    "RopeScaling",
    "Tokenizer",
    "YarnScaling",
    "catalogue_config",
    "catalogue_names",
    "config_from_gguf",
    "find_packaged_weights",
    "load_tokenizer",
    "model_of",
    "model_parameters",
    "open_checkpoint",
    "parameter_count",
    "read_config",
]
