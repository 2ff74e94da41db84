"""Mesh level: rows of tokens go to the cores that hold their experts, and come back as a sum.

A gate ``[rows.., X]`` that is not zero sends its row to its expert. Every expert has a place for
each row, so that no row is ever lost: not where one expert is sent all of them, nor where each row
goes to all experts. Places that no row is sent to hold zeros, and nothing is computed for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meshc.ir.core import Op, Operand, register, tensor_type
from meshc.ir.declared import attribute
from meshc.ir.types import Layout, Split, TensorType

DISPATCHES = ("", "local", "multicast", "ring", "gather")
"""How rows travel to the cores of their experts; empty until it is chosen."""


@dataclass(eq=False)
class Routed(Op):
    """An op on rows that gates send to experts; ``dim`` counts the experts."""

    dim: str = ""

    def check_routes(self, values: Operand, routes: Operand) -> None:
        """``values`` have the rows and experts of ``routes``, and lie as those do."""
        kind, given = tensor_type(values), tensor_type(routes)
        if given.dims[-1:] != (self.dim,) or kind.dims[: len(given.dims)] != given.dims:
            self.reject(f"{values} does not begin with rows and experts '{self.dim}' of {routes}")
        for dim in given.dims:
            if _split(kind, dim) != _split(given, dim):
                self.reject(f"{dim} of {values} does not lie as that of {routes} does")


@register("mesh.dispatch", "x, gates -> sent, routes")
@dataclass(eq=False)
class Dispatch(Routed):
    """Rows of ``x`` go to the cores of ``axis`` that hold their experts.

    ``x`` is [rows.., lanes..] and ``gates`` [rows.., dim], of which every core has all experts of
    its rows. A dim of ``x`` lies over ``axis``: one of its rows, which the gates then have too, or
    one of its lanes; or none does, and nothing has to be sent. The results lie with ``dim`` over
    ``axis``: ``sent`` [rows.., dim, lanes..] has row r at expert e where ``gates[r, e]`` is not
    zero, and zeros elsewhere; ``routes`` [rows.., dim] are the gates of a core's own experts.

    ``algo`` is empty until select-dispatch sets it. ``multicast``: an all-to-all in which each core
    of a line multicasts its rows in turn and keeps of the others' what is sent to its experts, with
    two colors whatever the number of cores (WaferLLM section 8); ``ring``: parts go around the
    ring of ranks; ``gather``: the first core of the axis gathers all and multicasts it; ``local``:
    each core has what it needs.
    """

    axis: str = ""
    algo: str = attribute("", among=DISPATCHES)

    @property
    def along(self) -> str:
        """The dim of ``x`` that lies over the axis, or nothing."""
        layout = tensor_type(self.operands[0]).layout or Layout()
        return next((s.dim for s in layout.splits if s.axis == self.axis), "")

    def verify(self, extents: Mapping[str, int]) -> None:
        """Gates and ``x`` have the same rows, and the results lie as the class says."""
        x, gates = (tensor_type(operand) for operand in self.operands)
        sent, routes = (tensor_type(result) for result in self.results)
        rows = gates.dims[:-1]
        if gates.dims[-1:] != (self.dim,) or self.dim in x.dims or x.dims[: len(rows)] != rows:
            self.reject(f"takes [rows.., lanes..] and gates [rows.., {self.dim}] of the same rows")
        if len({kind.dtype for kind in (x, gates, sent, routes)}) > 1:
            self.reject("takes and gives elements of one type")
        if sent.dims != (*rows, self.dim, *x.dims[len(rows) :]) or routes.dims != gates.dims:
            self.reject(f"gives [rows.., {self.dim}, lanes..] and routes [rows.., {self.dim}]")
        if any((k.layout or Layout()).partial or (k.layout or Layout()).roots for k in (x, gates)):
            self.reject("takes what is complete on every core that has it")
        here = [s for s in (x.layout or Layout()).splits if s.axis == self.axis]
        if len(here) > 1 or any(s.kind != "block" or s.skew or s.copies > 1 for s in here):
            self.reject(f"{self.operands[0]} has more than equal parts of one dim over {self.axis}")
        lying = {s.dim: s for s in (x.layout or Layout()).splits}
        if {s.dim: s for s in (gates.layout or Layout()).splits} != {
            dim: split for dim, split in lying.items() if dim in rows
        }:
            self.reject("each core has the gates of its own rows, for all experts")
        kept = {split for dim, split in lying.items() if dim != self.along}
        over = _split(routes, self.dim)
        if over is None or over.axis != self.axis or over.kind != "block" or over.copies > 1:
            self.reject(f"gives experts {self.dim} in equal parts over {self.axis}")
        for kind in (sent, routes):
            wanted = {over, *(s for s in kept if s.dim in kind.dims)}
            if {*(kind.layout or Layout()).splits} != wanted:
                self.reject(f"gives what lies as before, but for {self.dim} over {self.axis}")


@register("mesh.expert_gemv", "sent, routes, right+ -> product+")
@dataclass(eq=False)
class ExpertGemv(Routed):
    """Rows at their experts times the matrix of each: ``product[r, e] = sent[r, e] right[e]``.

    Contracts what a core holds of ``contract``; the products are partial over the axes that split
    it. Nothing is computed for rows that an expert is not sent, nor for an expert without rows.
    ``count`` is how many experts a row goes to, by which predictions count; 0 where that is not
    known.
    """

    contract: tuple[str, ...] = ()
    count: int = attribute(0, least=0)

    def verify(self, extents: Mapping[str, int]) -> None:
        """Each expert has a matrix, of which the rows are what is contracted."""
        sent, routes, *rights = self.operands
        self.check_routes(sent, routes)
        if self.count > extents[self.dim]:
            self.reject(f"a row goes to {self.count} of {extents[self.dim]} experts {self.dim}")
        left, rows = tensor_type(sent), tensor_type(routes).dims
        if left.dims != (*rows, *self.contract):
            self.reject(f"contracts all lanes of {sent}, which are not {', '.join(self.contract)}")
        for right, result in zip(rights, self.results, strict=True):
            kind = tensor_type(right)
            new = tuple(d for d in kind.dims if d not in left.dims)
            if {*kind.dims} != {self.dim, *self.contract, *new}:
                self.reject(f"{right} has no matrix for each {self.dim}")
            if tensor_type(result).dims != (*rows, *new):
                self.reject(f"the dims of {result} are not {', '.join((*rows, *new))}")
            for dim in (self.dim, *self.contract):
                if _split(kind, dim) != _split(left, dim):
                    self.reject(f"{dim} of {right} does not lie as that of {sent} does")
            self.check_routes(result, routes)
            for dim in new:
                if _split(kind, dim) != _split(tensor_type(result), dim):
                    self.reject(f"{dim} of {result} does not lie as that of {right} does")


@register("mesh.combine", "values, routes -> sum")
@dataclass(eq=False)
class Combine(Routed):
    """What experts computed of a row, weighted by its gates and added up over a core's own experts.

    ``values`` are [rows.., dim, lanes..] and ``routes`` [rows.., dim]; the result [rows.., lanes..]
    is a sum to be completed over the axis that experts lie over. What values hold where the gate is
    zero does not matter.
    """

    def verify(self, extents: Mapping[str, int]) -> None:
        """The result lies as the values do and is partial over the axis of the experts."""
        values, routes = self.operands
        self.check_routes(values, routes)
        kind, total = tensor_type(values), tensor_type(self.result)
        if total.dims != tuple(d for d in kind.dims if d != self.dim):
            self.reject(f"does not add up [{', '.join(kind.dims)}] over '{self.dim}'")
        over = _split(kind, self.dim)
        wanted = {s for s in (kind.layout or Layout()).splits if s != over}
        layout = total.layout or Layout()
        axes = {over.axis} if over else set()
        if {*layout.splits} != wanted or layout.roots or not {*layout.partial} <= axes:
            self.reject(f"gives what lies as {values} does, partial over the axis of {self.dim}")
        if over is not None and extents[self.dim] > over.block and not layout.partial:
            self.reject(f"gives a sum that is to be completed over {over.axis}")


def _split(kind: TensorType, dim: str) -> Split | None:
    return (kind.layout or Layout()).split_of(dim)


__all__ = ["DISPATCHES", "Combine", "Dispatch", "ExpertGemv"]
