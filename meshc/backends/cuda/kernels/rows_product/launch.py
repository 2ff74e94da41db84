"""A product by rows as a launch."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.gathering import Step
from meshc.backends.cuda.kernels.rows_product import kernel
from meshc.backends.cuda.kernels.rows_product.kernel import RowsProduct
from meshc.backends.cuda.launches import Launch


def product(
    step: Step, name: str, shape: RowsProduct, arguments: tuple[str, ...], matrix: str
) -> Launch:
    """The product of ``shape`` with ``matrix``, one of the ``arguments``, by a kernel called
    ``name``. Raises DoesNotFit."""
    plan = kernel.plan(shape, step.device)
    made = step.add_kernel(
        name, partial(kernel.text, plan), plan.blocks, plan.cluster, plan.arena, THREADS,
        plan.dsmem_bytes,
    )  # fmt: skip
    launch = Launch(made, arguments)
    step.reads_first(launch, matrix, plan.first_reads())
    step.renderers[made] = partial(kernel.text, plan, made)
    return launch


def product_of_columns(
    step: Step, name: str, shape: RowsProduct, arguments: tuple[str, ...], matrix: str
) -> Launch:
    """Like :func:`product`, for all columns of a step at once. A chunk of a prompt has as many
    columns as fit every such product, so the step notes what fits this one."""

    def fits(columns: int) -> object:
        return kernel.plan(replace(shape, batch=columns), step.device)

    step.of_columns.append(fits)
    return product(step, name, shape, arguments, matrix)
