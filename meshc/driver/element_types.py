"""Which element type a program computes in, and what is said when it is not the model's."""

from __future__ import annotations

from meshc.backends.request import CompileRequest
from meshc.backends.target import target_of
from meshc.devices import Device
from meshc.driver.models import LoadedModel
from meshc.frontend.language.ast import Dtype
from meshc.support.diagnostics import Diagnostics, fail


def element_type(
    loaded: LoadedModel, declared: str, request: CompileRequest, device: Device, report: Diagnostics
) -> str:
    """The type of activations and weights on the cores, of a model whose weights are ``declared``.

    ``--dtype`` comes first, then what the user's own text says, then the device's usual type. The
    type of a checkpoint is what its file holds, not a wish. A remark tells of every change that
    ``--dtype`` did not ask for. Raises ``bad-dtype`` where a text asks for what a device lacks.
    """
    if request.dtype:
        return request.dtype
    usual = target_of(request).USUAL_TYPE
    if usual is not None and not request.compile_to:
        return _instead_of(declared, *usual, report)
    statement = _stated(loaded)
    if statement is None:
        why = f"the usual one of {device.name}"
        return _instead_of(declared, device.default_dtype, why, report)
    if declared not in device.dtypes:
        fail(
            "bad-dtype",
            f"{device.name} does not compute in {declared}",
            statement.name.span,
            help=f"--dtype chooses another type, out of {', '.join(device.dtypes)}",
        )
    return declared


def _stated(loaded: LoadedModel) -> Dtype | None:
    """Where a text that is the user's own, no model of the library, says the type of weights."""
    if loaded.config is not None or loaded.model is None:
        return None
    said = (s for s in loaded.model.body if isinstance(s, Dtype) and s.role == "weights")
    return next(said, None)


def _instead_of(declared: str, taken: str, why: str, report: Diagnostics) -> str:
    if taken != declared:
        report.remark(
            "dtype", f"weights are {declared} in the model and {taken} on the cores, {why}"
        )
    return taken
