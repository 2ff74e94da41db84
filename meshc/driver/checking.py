"""``--check``: what each pass leaves must compute what it was given, and hold what it claims."""

from __future__ import annotations

from math import prod

from meshc.interp.check import check_same
from meshc.ir.clone import clone_module
from meshc.ir.core import tensor_type
from meshc.ir.module import Module
from meshc.ir.printer import print_module
from meshc.passes.base import Pass
from meshc.passes.instruments import Instrument
from meshc.support.diagnostics import InternalError, MeshcError, fail
from meshc.verify import check_claims

_MAX_ELEMENTS = 20_000_000
_MAX_CORES = 1024


class Check(Instrument):
    """Runs the module before and after each pass on the same random inputs, and checks every fact
    that it still claims. What differs is a fault of the pass: :class:`InternalError`."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.kept: Module | None = None
        self.compared = 0

    def before(self, step: Pass, module: Module) -> None:
        """Keep a copy; raises ``check-too-large`` when running it would take minutes."""
        _refuse_large(module)
        self.kept = clone_module(module)

    def after(self, step: Pass, module: Module, seconds: float) -> None:
        assert self.kept is not None
        _refuse_large(module)
        try:
            check_claims(module)
            check_same(self.kept, module, self.seed)
        except MeshcError as error:
            kept = print_module(self.kept)
            raise InternalError(f"{step.NAME}: {error}", str(step), kept) from error
        self.compared += 1


def _refuse_large(module: Module) -> None:
    elements = sum(
        prod(tensor_type(p.value).shape(module.dims)) for f in module.functions for p in f.params
    )
    cores = module.mesh.cores if module.mesh else 1
    if elements > _MAX_ELEMENTS or cores > _MAX_CORES:
        fail(
            "check-too-large",
            f"--check runs the module on {cores} cores and {elements} elements of weights and "
            f"state; it takes at most {_MAX_CORES} and {_MAX_ELEMENTS}",
            help="check fewer layers (--layers), a shorter sequence (--seq) or a smaller mesh",
        )
