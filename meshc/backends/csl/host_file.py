"""The host program: spreads tensors over the PEs, launches, collects the results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from meshc.analysis.csl.codes import KERNEL, packed_codes
from meshc.analysis.layout.coordinates import coordinate_functions, coordinate_values
from meshc.backends.csl.fabric.regions import Regions
from meshc.backends.csl.spelling.names import Names, of_rounds, plain, port_name, scalar_name
from meshc.backends.python.expressions import condition, expression, number, spelled
from meshc.backends.templates import render
from meshc.ir.affine import Cond, Expr, Piecewise
from meshc.ir.batch import POSITION, batch_of
from meshc.ir.mesh import Mesh
from meshc.ir.module import Buffer, Module, Port
from meshc.ir.ops.tile import Compute, scalars_of_rounds
from meshc.ir.phases import CACHED, DECODE, PHASE, TRANSITION, phases_of
from meshc.ir.types import BufferType, DType
from meshc.ir.values import Value
from meshc.support.diagnostics import fail

ROWS = "len"
"""The run-time scalar that counts the rows of a prompt."""
_NUMPY = {
    DType.F32: "float32",
    DType.F16: "float16",
    DType.BF16: "float32",
    DType.I32: "int32",
    DType.U8: "uint8",
    DType.U4: "uint8",
}
"""Types of arrays; NumPy has no bf16, whose numbers are float32 outside of PEs, and codes are
packed into words when they are spread."""


@dataclass(frozen=True)
class HostPort:
    """A port as the template writes it; its ``kind`` is weight, in or out."""

    name: str
    kind: str
    shape: str
    symbol: str
    lanes: str
    dtype: str
    function: str
    params: str
    body: list[str]
    pad: str


@dataclass(frozen=True)
class HostPhase:
    """A phase of a program of several, which the host launches by its ``name``: names of the
    inputs and outputs of a launch, and of the scalars that it is told."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scalars: tuple[str, ...]


@dataclass(frozen=True)
class Vocabulary:
    """What a host knows of a language model: the weight ``embedding`` whose ``size`` rows are the
    tokens' embeddings, how many tokens the caches hold, the tokens that end a text, and of models
    that have them the weight whose rows are ``learned`` positions."""

    embedding: str
    size: int
    capacity: int
    stop: tuple[int, ...] = ()
    learned: str | None = None


def host_file(
    module: Module,
    symbols: Mapping[str, Buffer],
    place: str,
    vocabulary: Vocabulary | None = None,
) -> str:
    """``run.py``; the folders of weights and of what is kept between runs lie in ``place``. With a
    ``vocabulary`` it also generates tokens by the steps that ``module`` computes.

    Raises ``csl-port-name`` for names that no file of the host can have, ``csl-dtype`` for
    elements that no copy carries, ``unsupported-port`` for lanes that depend on the run.
    """
    mesh = module.the_mesh()
    regions = Regions(mesh)
    phases = host_phases(module)
    tokens = None if vocabulary is None else _tokens(module, vocabulary, phases)
    counts = scalars_of_rounds(module)
    names = Names()
    symbol_of = {buffer.value: symbol for symbol, buffer in symbols.items()}
    ports = [_port(port, module, names, symbol_of[port.buffer]) for port in module.ports]
    used = {name for port in module.ports for name in _names_in(port)}
    values = coordinate_values(mesh)
    coordinates = [
        (name, _piecewise(value, "self."))
        for name, value in values.items()
        if name not in mesh.names and name in used
    ]
    functions = [
        (name, _piecewise(value, ""))
        for name, value in coordinate_functions(mesh).items()
        if name in used
    ]
    return render(
        "meshc.backends.csl",
        "one_program.py.jinja" if phases else "run.py.jinja",
        model="".join(c for c in plain(module.name) if c not in '"\\'),
        rows=mesh.rows,
        columns=mesh.columns,
        axes=mesh.names,
        regions=regions.origins if regions.several else (),
        coordinates=coordinates,
        functions=functions,
        ports=ports,
        constants=[(n, [float(v) for v in c]) for n, c in module.constants.items()],
        scalars=[(scalar_name(n), *span) for n, span in module.scalars.items() if n != PHASE],
        rounds=[(scalar_name(n), of_rounds(n), k) for n, k in counts.items()],
        counts=counts,
        kept=[
            _kept(symbol, buffer) for symbol, buffer in symbols.items() if buffer.role == "state"
        ],
        brains=[symbol for symbol, b in symbols.items() if b.type.dtype == DType.BF16],
        codes=_codes(module, symbol_of),
        multiples=module.multiples,
        room=module.capacity if {ROWS, POSITION} <= module.scalars.keys() else 0,
        lengths=any(f'"{ROWS}"' in port.shape for port in ports),
        weights=dict.fromkeys(("weights", f"{place}weights")),
        state=f"{place}state",
        tokens=tokens,
        several=tokens is not None and bool(counts),
        phases=phases,
        moved=moved_symbols(module, symbol_of),
        length=ROWS,
        cached=CACHED,
        chunk=chunk_of(module, CACHED) if CACHED in module.scalars else 0,
    )


def _tokens(
    module: Module, vocabulary: Vocabulary, phases: Sequence[HostPhase]
) -> dict[str, object] | None:
    """What the template writes of a language model; None where ``module`` is no step of one.

    A step alone is told its position. As one phase of several it is told what it reads: nothing on
    one row of cores where only the caches know how many tokens there are.
    """
    inputs, outputs = _tensors(module, "in"), _tensors(module, "out")
    steps = tuple(module.scalars) == (POSITION,)
    for phase in phases:
        if phase.name == DECODE:
            inputs, outputs = phase.inputs, phase.outputs
            steps = {*phase.scalars} <= {POSITION}
    if len(inputs) != 1 or len(outputs) != 1 or not steps:
        return None
    return {
        "embedding": port_name(vocabulary.embedding),
        "learned": port_name(vocabulary.learned) if vocabulary.learned else "",
        "activations": inputs[0],
        "logits": outputs[0],
        "chosen": chooses_tokens(module, outputs[0], vocabulary.size),
        "vocabulary": vocabulary.size,
        "capacity": vocabulary.capacity,
        "requests": batch_of(module),
        "clock_hz": module.the_device().whole("clock_hz"),
        "stop": str(vocabulary.stop),
    }


def chooses_tokens(module: Module, output: str, vocabulary: int) -> bool:
    """Whether ``output`` is the number of a token for each request, where others have a number for
    each token of the ``vocabulary``."""
    port = next(p for p in module.ports if p.name == output and p.direction == "out")
    return prod(port.tensor.shape(module.dims)) == batch_of(module) < vocabulary * batch_of(module)


def _tensors(module: Module, direction: str, buffers: Collection[Value] = ()) -> tuple[str, ...]:
    """Names of what a run is given or gives, in ``buffers`` if there are any."""
    of = {b.value for b in module.buffers if direction == "out" or b.role == "in"}
    ports = (p for p in module.ports if p.direction == direction and p.buffer in of)
    return tuple(dict.fromkeys(p.name for p in ports if not buffers or p.buffer in buffers))


def host_phases(module: Module) -> tuple[HostPhase, ...]:
    """The phases of a program of several."""
    found = []
    for phase in phases_of(module):
        used = {v.buffer for body in phase.block.regions for op in body.walk() for v in op.views()}
        inputs, outputs = _tensors(module, "in", used), _tensors(module, "out", used)
        found.append(HostPhase(phase.name, inputs, outputs, phase.scalars))
    return tuple(found)


def moved_symbols(module: Module, symbol_of: Mapping[Value, str]) -> tuple[str, ...]:
    """Symbols of the weights that the transition between phases moves."""
    written = {
        op.views()[0].buffer
        for phase in phases_of(module)
        if phase.name == TRANSITION
        for body in phase.block.regions
        for op in body.walk()
        if isinstance(op, Compute)
    }
    weights = [b.value for b in module.buffers if b.role == "weight" and b.value in written]
    return tuple(symbol_of[value] for value in weights)


def _codes(module: Module, symbol_of: Mapping[Value, str]) -> dict[str, tuple[int, int]]:
    """The rows of a group and the bits of a code, by the symbols of buffers of codes."""
    found = {}
    for op in module.walk():
        if isinstance(op, Compute) and op.kernel == KERNEL:
            buffer, group, bits = packed_codes(op)
            found[symbol_of[buffer]] = (group, bits)
    return found


def chunk_of(prefill: Module, position: str = POSITION) -> int:
    """Tokens that a launch reads of a prompt that goes on behind it: the next one begins at a
    multiple of the rows of cores. Where caches hold fewer tokens than there are rows, a launch
    reads them all. ``position`` is the scalar that counts the tokens before a chunk."""
    step, (_, most) = prefill.multiples.get(position, 1), prefill.scalars[ROWS]
    return most // step * step or most


def _extents(port: Port, module: Module) -> tuple[int | str, ...]:
    """Extents of the tensor of a port; the scalar that counts rows where there are several."""
    shape = port.tensor.shape(module.dims)
    if module.rows is None or ROWS not in module.scalars:
        return shape
    rows = module.rows.dim
    return tuple(ROWS if d == rows else n for d, n in zip(port.tensor.dims, shape, strict=True))


def _tuple(extents: tuple[int | str, ...]) -> str:
    """Extents as Python writes them, names in double quotes."""
    return str(extents).replace("'", '"')


def _kept(symbol: str, buffer: Buffer) -> tuple[str, str, str]:
    """A buffer that keeps its contents: symbol, extents, element type."""
    return symbol, str(buffer.type.shape), _numpy(buffer.type.dtype, buffer.value.name)


def _numpy(dtype: DType, name: str) -> str:
    if dtype not in _NUMPY:
        fail("csl-dtype", f"'{name}' has elements of type {dtype}, which the host cannot copy")
    return _NUMPY[dtype]


def _names_in(port: Port) -> set[str]:
    """The coordinates and functions of them that say which element a lane holds."""
    values: list[Expr | Cond] = [*port.element, *(value for _, value in port.lets)]
    values += [] if port.where is None else [port.where]
    return {name for value in values for name in value.free_vars | value.functions}


def _piecewise(value: Piecewise, owner: str) -> str:
    """A piecewise function as NumPy text."""
    names = {n: owner + n for n in value.free_vars}
    text = ""
    for cond, expr in reversed(value.pieces):
        body = expression(expr, names.__getitem__)
        if not text:
            text = body
            continue
        text = f"np.where({condition(cond, names.__getitem__)}, {body}, {text})"
    return text


def _check_names(mesh: Mesh, port: Port) -> None:
    """What a lane holds depends on the core and the lane only."""
    known = mesh.coordinates | set(port.lanes) | {name for name, _ in port.lets}
    values = [*port.element, *(value for _, value in port.lets)]
    used = {n for value in values for n in value.free_vars}
    used |= port.where.free_vars if port.where is not None else set()
    for name in sorted(used - known):
        fail(
            "unsupported-port",
            f"port @{port.name} depends on '{name}'",
            help="what a lane holds may depend on the core and on its lanes",
        )


def _port(port: Port, module: Module, names: Names, symbol: str) -> HostPort:
    kind = port.buffer.type
    assert isinstance(kind, BufferType)
    role = next(each.role for each in module.buffers if each.value == port.buffer)
    _check_names(module.the_mesh(), port)
    lanes = [f"lane_{n}" for n in range(len(port.lanes))]
    known = dict(zip(port.lanes, lanes, strict=True))
    body = []
    for count, (name, value) in enumerate(port.lets):
        text = expression(value, spelled(known))
        known[name] = f"let_{count}"
        body.append(f"{known[name]} = {text}")
    spell = spelled(known)
    arguments = [expression(e, spell) for e in port.element]
    if port.where is not None and not port.where.is_true:
        arguments.append(f"where=({condition(port.where, spell)},)")
    body.append(f"return element({', '.join(arguments)})")
    return HostPort(
        port_name(port.name),
        "weight" if (role, port.direction) == ("weight", "in") else port.direction,
        _tuple(_extents(port, module)),
        symbol,
        str(kind.shape),
        _numpy(kind.dtype, port.name),
        names.fresh(f"{port.name}_lanes"),
        ", ".join(["core", *lanes]),
        body,
        number(port.pad),
    )
