"""The options of meshc's own targets, and what those of others are declared by.

They stand beside the targets and not in their folders, so that the command line, which reads them
for its help, need not load the targets.
"""

from meshc.backends.options.base import TargetOptions, option
from meshc.backends.options.csl import CslOptions
from meshc.backends.options.cuda import CudaOptions
from meshc.backends.options.meshes import MeshOptions

OWN: dict[str, type[TargetOptions]] = {
    "python": MeshOptions,
    "csl": CslOptions,
    "cuda": CudaOptions,
}
"""The record of each of meshc's own targets, that of a request which names none first."""

__all__ = ["OWN", "CslOptions", "CudaOptions", "MeshOptions", "TargetOptions", "option"]
