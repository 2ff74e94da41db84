"""What ``meshc estimate MODEL`` prints for people: plans side by side, and what is behind one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from meshc.cli.printing import table
from meshc.cost.predictions import MODELS, Prediction
from meshc.cost.terms import MECHANISMS
from meshc.devices import KINDS
from meshc.driver.planning.plan_answers import PhasePlan, Plan, Room, Stream

_HEADS = (
    "model", "device", "phase", "on", "fits", "tokens/s", "ms", "bytes left", "KV tokens",
    "J/token", "violates",
)  # fmt: skip
_LARGEST = 8
"""Ops and buffers that are named."""


def plan_tables(plans: Sequence[Plan]) -> list[str]:
    """A row for each phase of each plan, why those that do not fit do not and what would, and of
    one plan alone what its time and memory are spent on."""
    rows = [_row(plan, phase) for plan in plans for phase in plan.phases]
    lines = table([_HEADS, *rows])
    for plan in plans:
        for phase in plan.phases:
            lines += _reasons(plan, phase, len(plans) > 1)
    lines += ["", *_mechanisms(plans)]
    if len(plans) == 1:
        for phase in plans[0].phases:
            lines += ["", *_details(phase)]
    for plan in plans:
        between = plan.transition
        if between is not None:
            name = f"{plan.model} on {plan.device}: " if len(plans) > 1 else ""
            lines += ["", f"{name}from prefill to decode {_amount(between.amount)} {between.unit} "
                      f"at least: {between.why}"]  # fmt: skip
    return lines


def _row(plan: Plan, phase: PhasePlan) -> tuple[str, ...]:
    found = phase.prediction
    rate = phase.tokens_per_second
    left = None if phase.room is None else phase.room.left
    return (
        plan.model,
        plan.device,
        phase.phase,
        _place(plan, phase),
        "yes" if phase.fits else "no",
        "-" if rate is None else _amount(rate),
        "-" if found is None else _amount(1e3 * found.seconds),
        "-" if left is None else str(left),
        "-" if phase.kv_tokens is None else str(phase.kv_tokens),
        "-" if phase.joules is None else _amount(phase.joules),
        " ".join(phase.violates) or "-",
    )


def _place(plan: Plan, phase: PhasePlan) -> str:
    if phase.mesh is None:
        if plan.nodes > 1:
            return f"{plan.nodes} nodes"
        return f"{plan.gpus} GPU" + ("s" if plan.gpus != 1 else "")
    many = phase.regions is not None and phase.regions > 1
    return f"{phase.regions} x {phase.mesh}" if many else phase.mesh


def _reasons(plan: Plan, phase: PhasePlan, named: bool) -> Iterator[str]:
    name = f"{plan.model} on {plan.device}, {phase.phase}" if named else phase.phase
    room = phase.room
    short = phase.refused is not None and room is not None and (room.left or 0) < 0
    if short and room is not None and room.left is not None:
        of = "core" if phase.mesh is not None else "GPU"
        yield (
            f"{name} does not fit: it needs {room.needed} bytes of a {of}, which has {room.size}: "
            f"{-room.left} bytes short"
        )
    elif phase.refused is not None:
        yield f"{name} is refused: {phase.refused.message}"
    if phase.cures:
        yield f"  {' or '.join(phase.cures)} fits"
    elif phase.refused is not None:
        yield "  nothing that was tried fits: fewer layers and tokens, other meshes or more GPUs"
    for letter, why in phase.violates.items():
        if not (short and letter == "M"):
            yield f"  {letter}: {why}"
    yield from (f"{name}: {what}" for what in phase.chosen)
    if phase.silent:
        yield f"{name}: no time, {phase.silent}"
    if phase.prediction is not None:
        yield from (f"{name}: not counted: {what}" for what in phase.prediction.left_out)


def _mechanisms(plans: Sequence[Plan]) -> list[str]:
    """Milliseconds by mechanism of all that is predicted."""
    rows, models = [], {}
    for plan in plans:
        for phase in plan.phases:
            found = phase.prediction
            if found is None:
                continue
            models[found.model] = MODELS[found.model]
            spent = found.cost.parts()
            cells = (
                _amount(1e3 * found.in_seconds(spent[name])) if name in found.apart else ""
                for name in MECHANISMS
            )
            least = "" if found.bound is None else _amount(1e3 * found.in_seconds(found.bound))
            what = f"{plan.model} {plan.device} {phase.phase} {_place(plan, phase)}"
            rows.append((what, *cells, _amount(1e3 * found.seconds), least, found.model))
    if not rows:
        return []
    heads = ("predicted ms", *MECHANISMS, "total", "bound", "by")
    return [*table([heads, *rows]), *(f"{name}: {words}" for name, words in models.items())]


def _details(phase: PhasePlan) -> Iterator[str]:
    """Ops, memory, routes and inputs of one phase."""
    found = phase.prediction
    if found is not None:
        yield from _parts(phase.phase, found)
    if phase.room is not None:
        yield from _memory(phase.phase, phase.room, phase.mesh is not None, phase.stream)
    routes = phase.routes
    if routes is not None:
        of = [f" of {free}" if free is not None else "" for free in
              (routes.free_colors, routes.free_queues)]  # fmt: skip
        yield (
            f"{phase.phase}: {routes.colors}{of[0]} colors at the busiest router, "
            f"{routes.queues}{of[1]} input queues on the busiest core"
        )
    if found is not None:
        for kind in KINDS:
            names = [one.name for one in found.inputs if one.kind == kind]
            if names:
                yield f"  {kind}: {', '.join(names)}"


def _parts(phase: str, found: Prediction) -> Iterator[str]:
    parts = sorted(found.parts, key=lambda part: -part.cost.total)
    rows = [(part.name, str(part.times), _amount(part.cost.total)) for part in parts[:_LARGEST]]
    rest = sum(part.cost.total for part in parts[_LARGEST:])
    if rest:
        rows.append((f"{len(parts) - _LARGEST} more", "", _amount(rest)))
    yield from table([(f"{phase}, what takes most", "times", found.unit), *rows])


def _memory(phase: str, room: Room, of_core: bool, stream: Stream | None) -> Iterator[str]:
    of = "core" if of_core else "GPU"
    size = "" if room.size is None else f" of {room.size}"
    uses = ", ".join(f"{name} {taken}" for name, taken in room.uses.items())
    yield f"{phase}: {room.needed}{size} bytes of a {of}: {uses}"
    if stream is not None:
        read = ", ".join(f"{name} {taken}" for name, taken in stream.uses.items())
        yield (
            f"  of {stream.size} bytes that cores share: {read}, read as they are needed "
            "(an estimate: no such program is emitted)"
        )
    largest = sorted(room.buffers.items(), key=lambda item: -item[1])[:_LARGEST]
    yield f"  largest buffers: {', '.join(f'{name} {size}' for name, size in largest)}"


def _amount(number: float) -> str:
    """A number with four figures that count."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
