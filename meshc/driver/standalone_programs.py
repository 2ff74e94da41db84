"""Programs for CUDA whose directories run without meshc."""

from __future__ import annotations

from collections.abc import Mapping

from meshc.backends import cuda
from meshc.driver.compiled import Compiled
from meshc.driver.weights import Array
from meshc.support.output import Content


def standalone_content(compiled: Compiled, tensors: Mapping[str, Array]) -> dict[str, Content]:
    """What the directory of a program for CUDA has so that it runs without meshc; ``tensors`` are
    its weights. Raises what :func:`meshc.backends.cuda.standalone_files` does."""
    program, config = cuda.from_json(compiled.files[cuda.MANIFEST]), compiled.loaded.config
    stop = config.eos_ids if config is not None else ()
    return {**cuda.standalone_files(program, compiled.files, tensors, stop)}
