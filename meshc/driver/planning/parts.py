"""The part of a model that one GPU among several has."""

from __future__ import annotations

from math import prod

from meshc.backends.cuda.gpu_divisions import dealing
from meshc.backends.request import CompileRequest
from meshc.backends.target_options import CudaOptions
from meshc.cost.served_graphs import served_of
from meshc.cost.served_models import ServedModel
from meshc.driver.compiling import given_module
from meshc.driver.models import LoadedModel
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.passes.manager import PassManager
from meshc.passes.registry import own_pipeline
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics


def part_of(loaded: LoadedModel, request: CompileRequest) -> Module:
    """The graph of the decode step of one of the GPUs of ``request``. Raises what the passes do."""
    whole = given_module(loaded, "decode", request, Diagnostics())
    passes = pipeline_to("graph")
    gpus = request.options_of(CudaOptions).gpus
    if gpus > 1:
        passes += own_pipeline(dealing(whole, gpus, request.keep_quantised))
    return PassManager(passes).run(whole)


def served_by_ranks(graph: Module) -> ServedModel:
    """What ranks load and compute of ``graph``, each with some of its experts, as :func:`part_of`
    deals them. Raises ``unsupported-architecture``."""
    found = served_of(graph)
    return found.with_whole_experts() if found.experts else found


def bytes_held(part: Module) -> dict[str, dict[str, int]]:
    """Bytes of the weights and the caches of a graph, by role and tensor."""
    found: dict[str, dict[str, int]] = {"weight": {}, "state": {}}
    for param in part.function.params:
        if param.role in found:
            kind = tensor_type(param.value)
            found[param.role][param.value.name] = kind.dtype.bytes * prod(kind.shape(part.dims))
    return found
