"""Checkpoints of published models: their configs, weights and tokenizers.

Reads Hugging Face directories and GGUF files. Every fault of a file is a diagnostic, never a
traceback; files are bounded in size, depth and counts before anything is built from them.
"""

from meshc.frontend.checkpoints.checkpoint_files import checkpoint_config
from meshc.frontend.checkpoints.family_model import model_of, model_parameters
from meshc.frontend.checkpoints.gguf.described_model import config_from_gguf
from meshc.frontend.checkpoints.hf.config import model_name, read_config
from meshc.frontend.checkpoints.hf.generation import Generation, read_generation
from meshc.frontend.checkpoints.in_memory import TensorsInMemory, config_in_memory
from meshc.frontend.checkpoints.known_models import catalogue_config, catalogue_names
from meshc.frontend.checkpoints.logical import parameter_count
from meshc.frontend.checkpoints.model_config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ModelConfig,
    RopeScaling,
    YarnScaling,
)
from meshc.frontend.checkpoints.packaged import find_packaged_weights
from meshc.frontend.checkpoints.tokenizer import Tokenizer, has_vocabulary, load_tokenizer
from meshc.frontend.checkpoints.weights import Checkpoint, checkpoint_in_memory, open_checkpoint

__all__ = [
    "Checkpoint",
    "DynamicScaling",
    "Generation",
    "LinearScaling",
    "Llama3Scaling",
    "LongScaling",
    "ModelConfig",
    "RopeScaling",
    "TensorsInMemory",
    "Tokenizer",
    "YarnScaling",
    "catalogue_config",
    "catalogue_names",
    "checkpoint_config",
    "checkpoint_in_memory",
    "config_from_gguf",
    "config_in_memory",
    "find_packaged_weights",
    "has_vocabulary",
    "load_tokenizer",
    "model_name",
    "model_of",
    "model_parameters",
    "open_checkpoint",
    "parameter_count",
    "read_config",
    "read_generation",
]
