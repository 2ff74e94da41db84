"""Models that somebody has in memory: the text of their config, and tensors by the names that files
of Hugging Face have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from meshc.frontend.checkpoints.hf.config import config_from_json
from meshc.frontend.checkpoints.json_text import parse_json_object
from meshc.frontend.checkpoints.model_config import ModelConfig
from meshc.frontend.checkpoints.quantised.method import QUANTIZATION_KEY
from meshc.frontend.checkpoints.tensor_source import FLOATS, Encoded, Part, StoredTensor
from meshc.frontend.checkpoints.tied_head import stores_own_head
from meshc.frontend.families import family_named
from meshc.ir.codes import CodeFormat
from meshc.ir.stored import floats
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class TensorsInMemory:
    """Tensors by name: the shape of each with the word for its elements (F32, F16, BF16; of others
    messages tell), and ``elements``, which gives them as arrays: float32, float16 or
    :data:`meshc.ir.stored.BF16`. ``label`` is what messages call all of them."""

    label: str
    described: Mapping[str, tuple[tuple[int, ...], str]]
    elements: Callable[[str], np.ndarray]

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """See :class:`meshc.frontend.checkpoints.tensor_source.TensorSource`."""
        return {
            name: StoredTensor(shape, word, word in FLOATS)
            for name, (shape, word) in self.described.items()
        }

    @property
    def files(self) -> tuple[Path, ...]:
        """None."""
        return ()

    def read(self, name: str, part: Part | None = None) -> np.ndarray:
        """See :class:`meshc.frontend.checkpoints.tensor_source.TensorSource`."""
        whole = self.elements(name)
        if part is not None:
            lanes = (slice(None),) * (part.axis % whole.ndim)
            whole = whole[(*lanes, slice(part.start, part.stop))]
        return np.ascontiguousarray(floats(whole), dtype=np.float32)

    def mapped(self, name: str) -> np.ndarray | None:
        """The tensor ``name`` as it stands in memory."""
        return self.elements(name)

    def read_encoded(self, name: str, form: CodeFormat) -> Encoded:
        """None of these tensors has scales. Raises KeyError."""
        raise KeyError(name)


def config_in_memory(
    text: str, name: str, source: TensorsInMemory, report: Diagnostics
) -> ModelConfig:
    """The model called ``name`` that the ``text`` of a config describes; its head is the embedding
    only where ``source`` has no other one.

    Errors: as :func:`meshc.frontend.checkpoints.hf.config.config_from_json`, and
    ``config-unsupported`` for weights that are quantised, which have other forms in memory than in
    files.
    """
    parsed = parse_json_object(text.encode(), name)
    if parsed.value.get(QUANTIZATION_KEY):
        fail(
            "config-unsupported",
            f"the weights of '{name}' are quantised in memory, and meshc reads them from files",
            parsed.span(QUANTIZATION_KEY),
            help="give the directory of the model",
        )
    config = config_from_json(parsed, name, report)
    own = config.tied_embeddings and stores_own_head(source, family_named(config.family))
    return replace(config, tied_embeddings=False) if own else config
