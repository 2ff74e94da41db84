"""pipeline-requests: let the requests of a step go through a program one behind another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from meshc.ir.affine import Cond, Expr
from meshc.ir.batch import BATCH, LENGTH, POSITION, REQUEST, requests_of
from meshc.ir.core import Block, Op
from meshc.ir.module import Buffer, Module, Port
from meshc.ir.ops import tile
from meshc.ir.types import BufferType
from meshc.ir.values import Value
from meshc.ir.views import Point, View
from meshc.passes.base import Pass
from meshc.support.diagnostics import Diagnostics, fail


@dataclass(frozen=True)
class PipelineRequests(Pass):
    """Let a step work on all requests: a loop over them around the program of one.

    The program says by the run-time scalar ``request`` whose caches a run reads and writes. It
    becomes the variable of a loop, each round of which has its own position. What the host gives
    and gets is that of all requests; a round copies its part. A core begins a round as soon as it
    has done the one before, since it waits for nothing but messages: so region r works on a request
    while region r - 1 works on the next one. The position -1 says that a request is not there:
    nothing is done in its round but that its results are zeros.

    Programs of one request are left alone, and so are those that read prompts.

    Before::

        scalars pos = 0..7, request = 0..2
        buffer %x : f32[4] {role = in}
        program @decode {
          tile.silu %x, %x

    After::

        scalars pos = -1..7
        buffer %x : f32[4]
        buffer %x_of_requests : f32[3, 4] {role = in}
        program @decode {
          tile.for {var = request, count = 3, each = [pos]} {
            tile.sweep {when = "pos >= 0"} {
              tile.copy %x, %x_of_requests[request]
              tile.silu %x, %x
    """

    NAME: ClassVar[str] = "pipeline-requests"
    LEVELS: ClassVar[tuple[str, ...]] = ("tile",)
    REQUIRES: ClassVar[frozenset[str]] = frozenset()
    ESTABLISHES: ClassVar[frozenset[str]] = frozenset()
    INVALIDATES: ClassVar[frozenset[str]] = frozenset(
        {
            "csl_functions",
            "csl_memory",
            "csl_products",
            "csl_queues",
            "csl_registers",
            "csl_tasks",
            "csl_words",
            "memory_planned",
        }
    )

    def run(self, module: Module, report: Diagnostics) -> Module:
        if REQUEST not in module.scalars or LENGTH in module.scalars:
            return module
        _check_scalars(module)
        _check_states(module)
        count = requests_of(module)
        inputs = _spread(module, "in", count)
        outputs = _spread(module, "out", count)
        body = module.program.body
        body.ops = [
            *(each.copied(View(each.own), each.part) for each in inputs),
            *body.ops,
            *(each.copied(each.part, View(each.own)) for each in outputs),
        ]
        results = [each.all_of.value for each in outputs]
        module.program.body = _each_request(body, count, results)
        _, last = module.scalars[POSITION]
        del module.scalars[REQUEST]
        module.scalars[POSITION], module.dims[BATCH] = (-1, last), count
        regions = module.the_mesh().regions
        report.remark(
            "pipeline",
            f"{count} requests go through the program one behind another"
            + (f", up to {min(regions, count)} at a time" if regions > 1 else ""),
        )
        return module


def _check_scalars(module: Module) -> None:
    """Fail with ``unsupported-batch`` where a run is told more than a position and a request, or
    no position: the requests of a step have nothing else of their own."""
    others = [name for name in module.scalars if name not in (POSITION, REQUEST)]
    if others or POSITION not in module.scalars:
        words = f"depends on '{others[0]}'" if others else f"has no scalar '{POSITION}'"
        fail(
            "unsupported-batch",
            f"'{module.name}' {words}, so it is no step in which each request has a position",
            help="run it for one request after the other",
        )


def _check_states(module: Module) -> None:
    """Fail with ``unsupported-batch`` where requests would share what is kept from run to run."""
    kept = {buffer.value for buffer in module.buffers if buffer.role == "state"}
    own = Point(Expr.var(REQUEST))
    for op in module.walk():
        for view in op.views():
            if view.buffer in kept and own not in view.indices:
                fail(
                    "unsupported-batch",
                    f"{view} is not the part of one request of what is kept from run to run",
                    view.span or op.span,
                    help=f"index a dim of %{view.buffer.name} by {REQUEST}",
                )


@dataclass(frozen=True)
class _Spread:
    """A buffer of the program of one request, its ``own``, and the one with what all requests have
    there; ``where`` are the cores on which the host gives or gets something."""

    own: Value
    all_of: Buffer
    where: Cond | None

    @property
    def part(self) -> View:
        """What the request of a round has in the buffer of all."""
        return View(self.all_of.value, (Point(Expr.var(REQUEST)),))

    def copied(self, target: View, source: View) -> Op:
        """The statement that copies what a round takes or gives."""
        return tile.Compute([target, source], kernel="copy", when=self.where)


def _spread(module: Module, direction: str, count: int) -> list[_Spread]:
    """Give the ports of ``direction`` whose tensors have the dim of requests buffers of all
    requests. Inputs without the dim are the same for all."""
    found: dict[Value, _Spread] = {}
    for place, port in enumerate(module.ports):
        if port.direction != direction:
            continue
        if BATCH in port.tensor.dims:
            if port.buffer not in found:
                found[port.buffer] = _for_all(module, port, count)
            module.ports[place] = _of_all(port, found[port.buffer].all_of)
        elif direction == "out":
            fail(
                "unsupported-batch",
                f"the result '{port.name}' has no dim {BATCH}, so requests would overwrite it",
                help=f"give it the dim {BATCH}",
            )
    return [*found.values()]


def _for_all(module: Module, port: Port, count: int) -> _Spread:
    """The buffer with what all requests have in that of ``port``, which becomes scratch."""
    own, kind = port.buffer, port.buffer.type
    assert isinstance(kind, BufferType)
    taken = {buffer.value.name for buffer in module.buffers}
    name = f"{port.name}_of_requests"
    while name in taken:
        name += "_"
    value = Value(name, BufferType(kind.dtype, (count, *kind.shape)))
    number = next(n for n, buffer in enumerate(module.buffers) if buffer.value is own)
    module.buffers[number].role = ""
    all_of = Buffer(value, port.direction)
    module.buffers.insert(number + 1, all_of)
    ports = [p for p in module.ports if p.buffer is own and p.direction == port.direction]
    guards = [Cond.true() if p.where is None else p.where for p in ports]
    known = all(guard.free_vars <= module.the_mesh().coordinates for guard in guards)
    where = Cond.any(guards) if known else Cond.true()
    return _Spread(own, all_of, None if where.is_true else where)


def _of_all(port: Port, buffer: Buffer) -> Port:
    """The port of the part of one request, with the parts of all in ``buffer``."""
    lane, taken = f"i_{BATCH.lower()}", {*port.lanes, *(name for name, _ in port.lets)}
    while lane in taken:
        lane += "_"
    places = zip(port.tensor.dims, port.element, strict=True)
    element = tuple(Expr.var(lane) if dim == BATCH else place for dim, place in places)
    return replace(port, buffer=buffer.value, lanes=(lane, *port.lanes), element=element)


def _each_request(body: Block, count: int, results: Sequence[Value]) -> Block:
    """``body`` once for each request that is there; zeros in the ``results`` of others."""
    there: Op = tile.Sweep(when=Cond.ge(Expr.var(POSITION), 0))
    there.regions = [body]
    request, absent = (Point(Expr.var(REQUEST)),), Cond.le(Expr.var(POSITION), -1)
    zeros: list[Op] = [
        tile.Compute([View(value, request)], kernel="fill", params={"value": 0.0}, when=absent)
        for value in results
    ]
    loop = tile.For(var=REQUEST, count=Expr.const(count), each=(POSITION,))
    loop.regions = [Block(ops=[*zeros, there])]
    return Block(ops=[loop])
