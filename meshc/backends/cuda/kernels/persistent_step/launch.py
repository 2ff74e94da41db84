"""A decode step as one launch."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

from meshc.analysis.cuda.blocks import THREADS
from meshc.backends.cuda.gathering import Launches, Step
from meshc.backends.cuda.kernels.attention_block.kernel import AttentionPlan
from meshc.backends.cuda.kernels.embed.kernel import LookUp
from meshc.backends.cuda.kernels.persistent_step import kernel
from meshc.backends.cuda.kernels.persistent_step.kernel import PersistentStep
from meshc.backends.cuda.kernels.rows_product.kernel import RowsPlan
from meshc.backends.cuda.kernels.tiles import DoesNotFit
from meshc.backends.cuda.launches import Launch, Stage
from meshc.backends.cuda.program import Buffer

Plan = TypeVar("Plan", LookUp, AttentionPlan, RowsPlan)


def persistent(step: Step, launches: Launches) -> Launches:
    """``launches`` of a decode step as one; their kernels leave ``step``. Raises DoesNotFit."""
    if step.module.ranks is not None:
        raise DoesNotFit("GPUs of several ranks meet between kernels")
    if len(launches.stages) != 1 or len(launches.after) != 1:
        raise DoesNotFit(f"the model has layers of {len(launches.stages)} kinds")
    (stage,), (head,), (look_up,) = launches.stages, launches.after, launches.before
    try:
        attention, inner, outer = stage.launches
    except ValueError:
        raise DoesNotFit(f"a layer has {len(stage.launches)} kernels, not 3") from None
    plan = kernel.plan(
        PersistentStep(
            stage.layers,
            _plan(step, look_up, LookUp),
            _plan(step, attention, AttentionPlan),
            _plan(step, inner, RowsPlan).shape,
            _plan(step, outer, RowsPlan).shape,
            _plan(step, head, RowsPlan).shape,
            -(-step.module.capacity // step.page),
        ),
        step.device,
    )
    arguments = _arguments(step, plan, look_up, attention, inner, outer, head)
    for launch in (look_up, attention, inner, outer, head):
        step.drop_kernel(launch.kernel)
    made = step.add_kernel(
        "step", partial(kernel.text, plan), plan.blocks, 1, plan.arena, THREADS, whole_grid=True
    )
    return Launches((), (Stage(stage.layers, ()),), (Launch(made, arguments),))


def _plan(step: Step, launch: Launch, kind: type[Plan]) -> Plan:
    found = step.plans.get(launch.kernel)
    if not isinstance(found, kind):
        raise DoesNotFit(f"kernel '{launch.kernel}' is no part of it")
    return found


def _arguments(step: Step, plan: kernel.PersistentPlan, *launches: Launch) -> tuple[str | int, ...]:
    """Those of the kernel, of whole weights and caches, and its buffers, which are added."""
    names = [[str(a).removesuffix("[]") for a in launch.arguments] for launch in launches]
    look_up, attention, inner, outer, head = names
    tokens, embedding, _, _ = look_up
    residual, sums, gain, qkv, out, keys, values, pages, _, cached, cosines, sines = attention
    _, ffn_gain, gate_up, features = inner
    _, down, _, _ = outer
    _, head_gain, table, logits = head
    shape = plan.shape.attention.shape
    units, group = shape.kv_heads * plan.splits, shape.sizes.group
    extents = {"rows": (shape.kv_heads, shape.sizes.rows), "records": (units, group, plan.record)}
    for name, extent in extents.items():
        step.buffers[name] = Buffer("f32", extent, "scratch")
    step.buffers["met"] = Buffer("i32", (1,), "scratch")
    return (
        tokens, embedding, residual, sums, "rows", "records", features, logits, gain, qkv, out,
        keys, values, ffn_gain, gate_up, down, head_gain, table, pages, cached, cosines, sines,
        "met",
    )  # fmt: skip
