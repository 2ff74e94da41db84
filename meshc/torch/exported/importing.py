"""From a program of ``torch.export`` to a model of the language and its weights."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._ops import HigherOrderOperator, OpOverload

from meshc.driver import LoadedModel
from meshc.frontend.language import parse_model
from meshc.support.diagnostics import Diagnostics, fail
from meshc.support.spans import Source
from meshc.torch.exported.followed_dims import BATCH, ROWS, WIDTH, WORDS, Dim, call
from meshc.torch.exported.operators import Operators, refuse
from meshc.torch.exported.statements import Statement, model_text
from meshc.torch.exported.values import Followed, Known, Several, Stored, Tokens

_MOST_ROWS = 16384
_FEWEST_ROWS = 11
_COMPARED = {"le", "lt", "ge", "gt", "sub", "add"}
_CHECKS = {"_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size"}
_INLINED = {"wrap_with_set_grad_enabled", "wrap_with_autocast"}
_VIEWS = {"view", "reshape", "alias", "contiguous", "to"}
_HALVES = (torch.float16, torch.bfloat16)
_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class ImportedModel:
    """A model of the language that says what an exported program computes.

    ``text`` is its source, ``weights`` its params by name, f32, in the order of their dims.
    :meth:`load` gives what :func:`meshc.compile` takes.
    """

    name: str
    text: str
    weights: dict[str, np.ndarray]

    def load(self, report: Diagnostics | None = None) -> LoadedModel:
        """The model, checked. Warnings go to ``report``."""
        source = Source(f"{self.name}.mesh", self.text)
        return LoadedModel(self.name, parse_model(source, None, report), None)


def import_exported(
    program: torch.export.ExportedProgram | str | Path, *, name: str = ""
) -> ImportedModel:
    """The decoder, or part of one, that ``program`` computes; or the program in a ``.pt2`` file,
    which torch reads: only files that one trusts.

    One input is followed: token ids [batch, rows], which are embedded, or a tensor [batch, rows,
    width]. Other inputs of whole numbers count positions from 0 on, or are masks [batch, rows] of
    ones. Rows are a dynamic dim. The program attends without caches; the model has one for each
    attention, so that it reads prompts and makes steps. ``name`` is what the model is called, that
    of the file or ``exported`` unless given.

    Raises MeshcError: ``bad-export`` for what torch cannot read, ``export-unsupported``, with the
    name of the op, for what the language cannot say.
    """
    if not isinstance(program, torch.export.ExportedProgram):
        path = Path(program)
        name = name or path.stem
        program = _read(path)
    called = re.sub(r"\W+", "_", name or "exported", flags=re.ASCII).strip("_").lower()
    called = called if re.match("[a-z]", called) else f"model_{called}".rstrip("_")
    found = _Program(program).model(called)
    found.load()
    return found


def _read(path: Path) -> Any:
    try:
        return torch.export.load(path)
    except Exception as problem:  # whatever the readers of torch raise
        words = (str(problem).splitlines() or [type(problem).__name__])[0]
        fail("bad-export", f"torch reads no exported program in '{path}': {words}")


class _Program:
    def __init__(self, program: torch.export.ExportedProgram) -> None:
        self.program = program
        self.graph = program.graph
        self.rows = self._rows()
        self.operators = Operators(self.rows)
        self.given: list[Statement] = []
        self.dtypes: set[torch.dtype] = set()
        self.prefix = _shared_prefix(program.graph_signature.parameters)

    def model(self, name: str) -> ImportedModel:
        """What the program computes."""
        values = self._inputs()
        if len(self.given) > 1:
            refuse(
                f"the program has {len(self.given)} inputs to follow, and a model has one",
                help="angles of positions and masks are made inside of what is exported",
            )
        with torch.no_grad():
            results = _flat(self._run(self.program.graph_module, values))
        kept = []
        for one in results:
            if isinstance(one, Known) or one is None:
                continue
            if not isinstance(one, Followed) or one.is_repeated():
                refuse("a result of the program is no value of a model")
            kept.append(one)
        if not kept or not self.given:
            refuse("no result of the program depends on an input that is followed")
        (given,) = self.given
        if given.stem == "tokens":
            call(kept[0].axes[-1], WORDS)
        stored = max(self.dtypes or {torch.float32}, key=str)
        found = model_text(
            name,
            "Imported from a program of torch.export.",
            given,
            [one.statement for one in kept],
            _DTYPES[stored],
        )
        return ImportedModel(name, found.text, found.weights)

    # --- what the program begins with

    def _inputs(self) -> dict[Any, Any]:
        signature = self.program.graph_signature
        tensors = {**self.program.state_dict, **self.program.constants}
        known = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        values: dict[Any, Any] = {}
        embedded = {
            _viewed(node.args[1])
            for node in self.graph.nodes
            if isinstance(node.target, OpOverload) and _name(node.target) == "embedding"
        }
        for node in self.graph.nodes:
            if node.op != "placeholder":
                continue
            if (target := signature.inputs_to_parameters.get(node.name)) is not None:
                values[node] = self._param(target, tensors[target])
            elif (target := known.get(node.name)) is not None:
                values[node] = Known(tensors[target].clone())  # which ops may write to
            else:
                values[node] = self._input(node, node in embedded)
        return values

    def _param(self, target: str, tensor: torch.Tensor) -> Stored:
        if tensor.dtype not in _DTYPES:
            refuse(f"the param '{target}' is of {tensor.dtype}", help="params are f32, f16 or bf16")
        self.dtypes.add(tensor.dtype)
        return Stored(tensor, (_param_name(target, self.prefix),))

    def _input(self, node: Any, embedded: bool) -> Any:
        """A followed tensor, or what an input of whole numbers has to be."""
        kind = node.meta.get("val")
        if not isinstance(kind, torch.Tensor):
            return Known(kind)
        sizes = [size if isinstance(size, int) else None for size in kind.shape]
        if kind.dtype.is_floating_point or embedded:
            if len(sizes) != 3 - embedded or (not embedded and sizes[2] is None):
                refuse(
                    f"the input '{node.name}' has {len(sizes)} axes",
                    help="what is followed is token ids [batch, rows], or [batch, rows, width]",
                )
            if sizes[1] is not None:
                refuse(
                    f"the program is exported for {sizes[1]} rows of '{node.name}' alone",
                    help=f"export it with dynamic_shapes={{'{node.name}': {{1: Dim('rows')}}}}",
                )
            batch, rows = Dim(sizes[0] or 1, BATCH), Dim(self.rows, ROWS)
            if embedded:
                statement = Statement("tokens", (), (batch, rows), "tokens")
                self.given.append(statement)
                return Tokens(statement, ((batch,), (rows,)))
            width = Dim(sizes[2] or 1, WIDTH)
            statement = Statement("hidden", (), (batch, rows, width), "hidden")
            self.given.append(statement)
            return Followed(statement, ((batch,), (rows,), (width,)))
        shape = [
            size or (self.rows if at == len(sizes) - 1 else 1) for at, size in enumerate(sizes)
        ]
        fits = len(shape) in (1, 2) and shape[-1] == self.rows
        if fits and "mask" in node.name:
            return Known(torch.ones(shape, dtype=kind.dtype))
        if fits and "position" in node.name:
            return Known(torch.arange(self.rows, dtype=kind.dtype).expand(shape))
        refuse(
            f"the input '{node.name}' is no token ids that are embedded, no positions and no mask",
            help="inputs of whole numbers, [batch, rows] or [rows], are told apart by their names",
        )

    def _rows(self) -> int:
        """For how many rows what hangs on positions is computed: enough that every number with
        which positions are compared makes a difference."""
        numbers = [0]
        for module in self.program.graph_module.modules():
            for node in getattr(getattr(module, "graph", None), "nodes", ()):
                numbers += _compared(node)
        rows = max(_FEWEST_ROWS, max(numbers) + 3)
        most = [
            int(bound.upper)
            for bound in self.program.range_constraints.values()
            if str(bound.upper).isdigit()
        ]
        if most and min(most) < rows:
            if min(most) < max(numbers) + 3 or min(most) < 3:
                refuse(
                    f"positions are compared with {max(numbers)}, and the program takes "
                    f"{min(most)} rows at most",
                    help="export it with a dynamic dim of rows without such a bound",
                )
            rows = min(most)
        if rows > _MOST_ROWS:
            refuse(f"positions are compared with {max(numbers)}, too far to look at all masks")
        return rows

    # --- following

    def _run(self, module: Any, values: dict[Any, Any]) -> Any:
        for node in module.graph.nodes:
            if node.op == "get_attr":
                values[node] = Known(getattr(module, node.target))
            elif node.op == "call_function":
                values[node] = self._call(node, values)
            elif node.op == "output":
                return _put(node.args[0], values)
            elif node.op == "call_module" and node.target == "_guards_fn":
                continue
            elif node.op != "placeholder":
                refuse(f"'{node.target}' is no op of ATen")
        raise AssertionError("a graph has an output")

    def _call(self, node: Any, values: dict[Any, Any]) -> Any:
        target = node.target
        args = _put(list(node.args), values)
        named = _put(dict(node.kwargs), values)
        if target is operator.getitem:
            values_of, at = args
            if isinstance(values_of, Known):
                return Known(values_of.value[at])
            return _flat(values_of)[at]
        if isinstance(target, HigherOrderOperator) and target.name() in _INLINED:
            return self._inlined(args)
        if isinstance(target, OpOverload) and target.namespace == "aten":
            return self._op(target, args, named)
        if getattr(target, "__module__", "") == "_operator" or target in (
            torch.sym_max,
            torch.sym_min,
            torch.sym_not,
        ):
            return Known(target(*_plain(args)))
        refuse(f"'{target}' is no op of ATen")

    def _inlined(self, args: Sequence[Any]) -> Any:
        at = next(n for n, one in enumerate(args) if isinstance(_value(one), torch.nn.Module))
        body = _value(args[at])
        holders = [node for node in body.graph.nodes if node.op == "placeholder"]
        found = self._run(body, dict(zip(holders, args[at + 1 :], strict=True)))
        return Several(tuple(found)) if isinstance(found, list | tuple) else found

    def _op(self, target: Any, args: list[Any], named: dict[str, Any]) -> Any:
        name = _name(target)
        if name in _CHECKS:
            return Known(None)
        leaves = _flat([*args, *named.values()])
        if any(isinstance(one, Tokens) for one in leaves) and name in ("sym_size", "new_ones"):
            args[0] = Known(torch.zeros(args[0].shape, dtype=torch.int64))
            leaves = _flat([*args, *named.values()])
        if name == "sym_size" and isinstance(args[0], Followed):
            return Known(args[0].shape[_value(args[1])])
        if not any(_is_followed(one) for one in leaves):
            return self._computed(target, name, args, named)
        schema = target._schema.arguments
        arguments = [
            _open(
                args[at]
                if at < len(args)
                else named.get(one.name, one.default_value if one.has_default_value() else None)
            )
            for at, one in enumerate(schema)
        ]
        return self.operators.apply(name, arguments)

    def _computed(self, target: Any, name: str, args: list[Any], named: dict[str, Any]) -> Any:
        """What an op gives of constants, positions and params. Tables of positions stay in f32."""
        leaves = _flat([*args, *named.values()])
        names = tuple(
            dict.fromkeys(n for one in leaves if isinstance(one, Stored) for n in one.names)
        )
        given, options = _plain(args), _plain(named)
        narrows = any(one in _HALVES for one in [*given, *options.values()] if _is_dtype(one))
        if name == "to" and narrows and not names and given[0].is_floating_point():
            return Known(given[0])
        found = target(*given, **options)
        if isinstance(found, list | tuple):
            wrapped = (Stored(one, names) if names else Known(one) for one in found)
            return Several(tuple(wrapped))
        return Stored(found, names) if names else Known(found)


def _name(target: Any) -> str:
    """The name of an op without its namespace and overload."""
    return str(target._schema.name).partition("::")[2]


def _viewed(node: Any) -> Any:
    """What ``node`` is a view of."""
    while isinstance(node.target, OpOverload) and _name(node.target) in _VIEWS:
        node = node.args[0]
    return node


def _compared(node: Any) -> list[int]:
    """The whole numbers with which an op compares or moves whole numbers."""
    if not isinstance(node.target, OpOverload) or _name(node.target) not in _COMPARED:
        return []
    first = node.args[0]
    kind = first.meta.get("val") if hasattr(first, "meta") else None
    if not isinstance(kind, torch.Tensor) or kind.dtype.is_floating_point:
        return []
    return [abs(one) for one in node.args[1:] if isinstance(one, int) and abs(one) < 1 << 31]


def _is_followed(value: Any) -> bool:
    return not isinstance(value, Known | Stored) and type(value).__module__ == Followed.__module__


def _is_dtype(value: Any) -> bool:
    return isinstance(value, torch.dtype)


def _put(value: Any, values: dict[Any, Any]) -> Any:
    """An argument with what stands for each node."""
    if isinstance(value, torch.fx.Node):
        return values[value]
    if isinstance(value, list | tuple):
        return [_put(one, values) for one in value]
    if isinstance(value, dict):
        return {key: _put(one, values) for key, one in value.items()}
    return value


def _flat(value: Any) -> list[Any]:
    """The values in lists and dictionaries."""
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in _flat(one)]
    if isinstance(value, dict):
        return _flat(list(value.values()))
    return list(value.values) if isinstance(value, Several) else [value]


def _value(value: Any) -> Any:
    return value.value if isinstance(value, Known | Stored) else value


def _plain(value: Any) -> Any:
    """What torch computes with."""
    if isinstance(value, Several):
        return _plain(list(value.values))
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return _value(value)


def _open(value: Any) -> Any:
    """An argument of an op on followed tensors: whole numbers, options and lists of them as they
    are, known tensors in what says so."""
    if isinstance(value, list | tuple):
        return [_open(one) for one in value]
    if isinstance(value, Known) and not isinstance(value.value, torch.Tensor):
        return value.value
    return value


def _shared_prefix(targets: Iterable[str]) -> str:
    """The modules that all params are in."""
    paths = [target.split(".")[:-2] for target in targets]
    shared = takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))
    return "".join(f"{parts[0]}." for parts in shared)


def _param_name(target: str, prefix: str) -> str:
    parts = target.removeprefix(prefix).split(".")
    parts = [part for part in parts if part not in ("model", "weight")] or parts
    return "_".join(parts)
