"""fuse-cluster: ops of a decode step become the kernels that clusters of thread blocks compute."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from meshc.cost import clusters, latent
from meshc.cost.clusters import Choice
from meshc.cost.latent import LatentChoice
from meshc.devices import Device
from meshc.ir.builder import Builder
from meshc.ir.core import Block, Op, tensor_type
from meshc.ir.module import Module
from meshc.ir.ops import graph
from meshc.ir.values import Value
from meshc.passes.base import Pass
from meshc.passes.graph.flow import Flow, Mismatch, block_with
from meshc.passes.graph.fusible import (
    ACTIVATIONS,
    Group,
    attention_block,
    embed,
    gated_ffn_block,
    head,
    plain_ffn_block,
)
from meshc.passes.graph.fusible_latent import is_latent, latent_block
from meshc.support.diagnostics import Diagnostics, fail

_DTYPES = ("f16", "bf16")


@dataclass(frozen=True)
class FuseCluster(Pass):
    """Fuse a decode step into kernels for thread-block clusters (ClusterFusion section 3.2).

    RMSNorm, the q, k and v projections, RoPE, the caches, attention, the output projection (with
    biases or without) and the residual sum become an ``attention_block``, latent attention with
    absorbed weights and all these a ``latent_block``; a feed-forward layer, gated or not, with its
    norm and residual an ``ffn_block``; the last norm and the logits a
    ``head``; the look-up of token ids an ``embed``. Blocks of a cluster share an attention head by
    the dataflow and in the number that the cost model predicts to be fastest at a full cache;
    ``cluster`` (a number), ``dataflow`` (split_token, split_head), ``resident`` (blocks
    that share a core) and ``heads`` (query heads of a cluster) force it. What is fused is told as
    ``fused``, what stays and why as ``missed[fuse-cluster]``.

    Before::

        %h = graph.rms_norm %x, %norm {dim = E}
        %q, %k, %v = graph.matmul %h, %wq, %wk, %wv {contract = [E]}
        %y = graph.matmul %a, %wo {contract = [H, D]}
        %z = graph.add %x, %y

    After::

        %z, %keys, %values = graph.fuse %x, ... {kernel = attention_block, dataflow = ...
          graph.yield
    """

    NAME: ClassVar[str] = "fuse-cluster"
    LEVELS: ClassVar[tuple[str, ...]] = ("graph",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset({"transpose_free"})
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset()

    cluster: str = "auto"
    dataflow: str = "auto"
    resident: str = "auto"
    heads: str = "auto"

    def run(self, module: Module, report: Diagnostics) -> Module:
        forced = self._forced()
        why = _unfit(module)
        if why:
            report.missed("fuse-cluster", f"nothing is fused: {why}")
            return module
        device = module.the_device()
        for group in _groups(module, report):
            _fuse(module, device, group, forced, report)
        return module

    def _forced(self) -> dict[str, Any]:
        """Arguments of the choice that the options fix."""
        found: dict[str, Any] = {}
        for name in ("cluster", "resident", "heads"):
            text = getattr(self, name)
            if text != "auto":
                if not re.fullmatch(r"[1-9]\d{0,3}", text):
                    what = "heads" if name == "heads" else "blocks"
                    _bad_option(name, text, f"auto or a number of {what}")
                found[name] = int(text)
        if self.dataflow != "auto":
            if self.dataflow not in clusters.DATAFLOWS:
                _bad_option("dataflow", self.dataflow, f"auto, {', '.join(clusters.DATAFLOWS)}")
            found["dataflow"] = self.dataflow
        return found


def _bad_option(name: str, text: str, wanted: str) -> NoReturn:
    fail("bad-pass-option", f"option '{name}' of fuse-cluster is '{text}'", help=f"it is {wanted}")


def _unfit(module: Module) -> str:
    """Why no kernel fits the whole module, or an empty text."""
    if any(isinstance(op, graph.Fuse) for op in module.walk()):
        return "its ops are in kernels already"
    if module.device is None:
        return "the module names no device"
    if module.device.kind != "cluster":
        return f"device {module.device.name} is no GPU with clusters"
    dtype = str(module.option("dtype", str(module.dtype())))
    if dtype not in _DTYPES:
        return f"kernels compute with {' or '.join(_DTYPES)}, not {dtype}"
    for op in module.walk():
        if isinstance(op, graph.Softmax) and module.dims.get(op.rows, 1) > 1:
            rows = f"{op.rows} = {module.dims[op.rows]} rows at once"
            return f"{rows} (prefill); clusters compute decode steps"
    return ""


_Matcher = Callable[[Flow, Any], Group]


def _groups(module: Module, report: Diagnostics) -> Iterator[Group]:
    """Groups in the order of their places; what does not match is reported.

    Uses are found anew after each group, since what is fused has moved.
    """
    for op in list(module.walk()):
        matcher = _matcher(module, op)
        if matcher is None:
            continue
        flow = Flow(module)
        try:
            group = matcher(flow, op)
            _closed(flow, group)
        except Mismatch as why:
            report.missed("fuse-cluster", f"{_TITLES[matcher]} stays: {why}", why.op.span)
            continue
        yield group


def _matcher(module: Module, op: Op) -> _Matcher | None:
    """The matcher of the kernel that ``op`` is the mark of."""
    if isinstance(op, graph.Softmax):
        return latent_block if is_latent(Flow(module), op) else attention_block
    if isinstance(op, graph.Embed):
        return embed
    if isinstance(op, ACTIVATIONS):
        return None if _gates(module, op) else plain_ffn_block
    if isinstance(op, graph.Mul):
        makers = {r: o for o in module.walk() for r in o.results}
        acts = [makers.get(value) for value in op.tensors()]
        return gated_ffn_block if any(isinstance(a, ACTIVATIONS) for a in acts) else None
    last = module.function.body.ops[-1]
    if isinstance(op, graph.Matmul) and any(r in last.tensors() for r in op.results):
        return head
    return None


def _gates(module: Module, act: Op) -> bool:
    """Whether a product of values reads the activation; its mark is that product then."""
    return any(isinstance(op, graph.Mul) and act.results[0] in op.operands for op in module.walk())


_TITLES: dict[_Matcher, str] = {
    attention_block: "an attention block",
    latent_block: "a latent attention block",
    gated_ffn_block: "a feed-forward block",
    plain_ffn_block: "a feed-forward block",
    head: "the head",
    embed: "an embedding",
}


def _closed(flow: Flow, group: Group) -> None:
    """All ops in one block, and nobody outside reads what the kernel keeps to itself."""
    if len(set(group.inputs)) < len(group.inputs):
        raise Mismatch("it takes one value in two places", group.at)
    block = block_with(flow.module, group.ops[-1])
    places = {id(op): place for place, op in enumerate(block.ops)}
    for op in group.ops:
        if id(op) not in places:
            raise Mismatch(f"{op.NAME} {op.results[0]} is in another block", op)
    last = max(places[id(op)] for op in group.ops)
    for op in group.ops:
        for value in op.results:
            _kept(flow, group, value, places, last)


def _kept(flow: Flow, group: Group, value: Value, places: dict[int, int], last: int) -> None:
    for reader in flow.readers.get(value, []):
        if any(reader is op for op in group.ops):
            continue
        if value not in group.outputs:
            raise Mismatch(f"{value} is also read by {reader.NAME}", reader)
        if places.get(id(reader), last) < last:
            raise Mismatch(f"{reader.NAME} reads {value} before the kernel is over", reader)


def _fuse(
    module: Module, device: Device, group: Group, forced: dict[str, Any], report: Diagnostics
) -> None:
    """Fuse ``group`` if a kernel of its shape fits, and say what was done."""
    if group.latent is not None:
        _fuse_latent(module, device, group, forced, report)
        return
    if group.shape is None:
        words = _rows_misfit(device, group)
        if words:
            report.missed("fuse-cluster", f"{group.kernel} does not fit: {words}", group.at.span)
            return
        _replace(module, group, graph.Fuse(kernel=group.kernel))
        report.remark("fused", _rows_remark(device, group), group.at.span)
        return
    choice = clusters.choose(device, group.shape, group.context, **forced)
    if choice is None:
        reasons = _misfits(device, group, forced)
        report.missed("fuse-cluster", f"attention_block does not fit: {reasons}", group.at.span)
        return
    attributes = (group.kernel, choice.dataflow, choice.cluster, choice.resident, choice.heads)
    _replace(module, group, graph.Fuse([], [], [], None, None, *attributes))
    report.remark("fused", _attention_remark(choice, group.shape), group.at.span)


def _fuse_latent(
    module: Module, device: Device, group: Group, forced: dict[str, Any], report: Diagnostics
) -> None:
    assert group.latent is not None
    asked = forced.get("cluster", 0), forced.get("heads", 0)
    choice = latent.choose(device, group.latent, group.context, *asked)
    if forced.get("dataflow", "split_token") != "split_token" or forced.get("resident", 1) != 1:
        words = "it is computed by split_token, one block on a core"
    elif choice is None:
        words = "; ".join(latent.all_misfits(device, group.latent, *asked))
    else:
        attributes = (group.kernel, "split_token", choice.cluster, 1, choice.group)
        _replace(module, group, graph.Fuse([], [], [], None, None, *attributes))
        report.remark("fused", _latent_remark(choice), group.at.span)
        return
    report.missed("fuse-cluster", f"latent_block does not fit: {words}", group.at.span)


def _latent_remark(choice: LatentChoice) -> str:
    return (
        f"latent_block: split_token, clusters of {choice.cluster} for {choice.group} heads each, "
        f"{choice.dsmem_bytes} bytes of DSMEM per step, {choice.read_bytes} bytes read by blocks, "
        f"{choice.memory.bytes} bytes of shared memory ({choice.memory.stages} tiles), "
        f"{choice.blocks} blocks, {choice.waves} {'wave' if choice.waves == 1 else 'waves'}, "
        f"predicted {1e6 * choice.seconds:.1f} us"
    )


def _misfits(device: Device, group: Group, forced: dict[str, Any]) -> str:
    """Why no choice fits: what holds for all cluster sizes, or the reasons of each."""
    assert group.shape is not None
    asked = {name: value for name, value in forced.items() if name != "resident"}
    divisions = clusters.divisions(device, group.shape, **asked)
    if not divisions:
        flow = forced.get("dataflow", "split_token")
        return f"{forced['heads']} of {group.shape.group} query heads are no share by {flow}"
    found = [clusters.misfits(device, *division, group.context) for division in divisions]
    if not any(found):
        return f"{forced.get('resident')} blocks do not share a core: memory or registers"
    return "; ".join(clusters.together(found))


def _rows_misfit(device: Device, group: Group) -> str:
    """Why a kernel of products by rows does not fit, or an empty text."""
    if group.batch > clusters.MOST_BATCH:
        return f"a batch of {group.batch} vectors is more than {clusters.MOST_BATCH}"
    for width, rows in group.matrices:
        if width % 8:
            return f"rows of {width} values are no whole number of eights"
        if group.kernel == "embed":
            continue
        memory = clusters.rows_plan(device, width, rows, group.batch).memory
        if not memory.fits:
            return clusters.memory_misfit(memory)
    return ""


def _attention_remark(choice: Choice, shape: clusters.Attention) -> str:
    of_head = f" for {choice.heads} of {shape.group} query heads each"
    return (
        f"attention_block: {choice.dataflow}, clusters of {choice.cluster}"
        f"{of_head if choice.heads < shape.group else ''}, "
        f"{choice.dsmem_bytes} bytes of DSMEM per step, {choice.memory.bytes} bytes of shared "
        f"memory ({choice.memory.stages} tiles), {choice.blocks} blocks, {choice.resident} on a "
        f"core, {choice.waves} {'wave' if choice.waves == 1 else 'waves'}, predicted "
        f"{1e6 * choice.seconds:.1f} us"
    )


def _rows_remark(device: Device, group: Group) -> str:
    if group.kernel == "embed":
        return f"embed: {group.batch} rows of {group.matrices[0][0]} values"
    plans = [clusters.rows_plan(device, *matrix, group.batch) for matrix in group.matrices]
    seconds = clusters.rows_cost(device, group.matrices).total
    return (
        f"{group.kernel}: clusters of {' and '.join(str(p.cluster) for p in plans)}, "
        f"{sum(p.dsmem_bytes for p in plans)} bytes of DSMEM per step, "
        f"{max(p.memory.bytes for p in plans)} bytes of shared memory, "
        f"predicted {1e6 * seconds:.1f} us"
    )


def _replace(module: Module, group: Group, fuse: graph.Fuse) -> None:
    """Put ``fuse`` with the ops of ``group`` as its body in the place of the last of them."""
    block = block_with(module, group.ops[-1])
    chosen = [op for op in block.ops if any(op is known for known in group.ops)]
    outside = [v for v in dict.fromkeys(group.inputs) if isinstance(v, Value)]
    place = next(i for i, op in enumerate(block.ops) if op is chosen[-1]) - len(chosen) + 1
    builder = Builder(module, block, place)  # knows all names: made before ops leave the block
    block.ops = [op for op in block.ops if all(op is not known for known in chosen)]
    fuse.operands = [*outside]
    inner = {v: Value(builder.names.fresh(v.name), v.type) for v in outside}
    _rename_operands(chosen, inner)
    body = Block(list(inner.values()), chosen)
    body.ops.append(graph.Yield(list(group.outputs)))
    fuse.regions = [body]
    fuse.span = group.at.span
    names = [value.name for value in group.outputs]
    results = builder.add(fuse, *names, types=[tensor_type(v) for v in group.outputs])
    _hand_over(module, fuse, dict(zip(group.outputs, results, strict=True)))


def _rename_operands(ops: Iterable[Op], changes: dict[Value, Value]) -> None:
    for op in ops:
        op.operands = [changes.get(o, o) if isinstance(o, Value) else o for o in op.operands]


def _hand_over(module: Module, fuse: graph.Fuse, changes: dict[Value, Value]) -> None:
    """Outside of its body, the kernel's results stand for what its body gives.

    They take the names, so that a fused module reads like the one it was made of.
    """
    inside = {id(op) for op in fuse.regions[0].ops}
    _rename_operands((op for op in module.walk() if id(op) not in inside), changes)
    for given, result in changes.items():
        given.name, result.name = result.name, given.name
