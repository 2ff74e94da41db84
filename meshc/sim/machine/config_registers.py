"""Configuration registers, time stamps, traces and prints."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from meshc.sim import config_space as space
from meshc.sim.machine.pe import Pe
from meshc.sim.machine.router import Router


def read(pe: Pe, addr: int) -> int:
    """A load from a register's byte address."""
    return get_config(pe, addr // 2)


def write(pe: Pe, addr: int, value: int) -> None:
    """A store to a register's byte address."""
    set_config(pe, addr // 2, value & 0xFFFF)


def get_config(pe: Pe, word: int) -> int:
    """A register by word address; those that are not modelled keep what was written."""
    word = space.word_of(word)
    color, switch = space.color_of(word), space.switch_color_of(word)
    if color is not None:
        return _present(pe, color).color_word()
    if switch is not None:
        return _present(pe, switch).switch_word()
    if word in space.TIMESTAMP:
        return _tsc(pe) >> 16 * (word - space.TIMESTAMP.start) & 0xFFFF
    if word == space.INPUT_STATUS:
        return _input_status(pe)
    if word == space.OUTPUT_STATUS:
        return 0xFF
    if word in space.TEARDOWN_PENDING:
        first = 16 * (word - space.TEARDOWN_PENDING.start)
        return sum(_present(pe, first + n).teardown << n for n in range(min(16, 24 - first)))
    return pe.registers.get(word, 0)


def _input_status(pe: Pe) -> int:
    """One bit per queue: empty ones in the low byte, full ones (none) in the high byte."""
    filled = {color for color, channel in pe.channels.items() if channel.bursts}
    busy = sum(1 << queue for queue, color in pe.in_queues.items() if color in filled)
    return 0xFF & ~busy


def _present(pe: Pe, color: int) -> Router:
    """The router as the PE's own code sees it: with its changes that are still on their way."""
    router = pe.machine.fabric.router(pe, color)
    if not router.pending:
        return router
    seen = copy(router)
    seen.positions = list(router.positions)
    seen.selects = list(router.selects)
    for change in router.pending:
        change(seen)
    return seen


def _change(pe: Pe, color: int, change: Callable[[Router], None]) -> None:
    """Change a router; it takes effect a little later than the PE's own time."""
    router = pe.machine.fabric.router(pe, color)
    router.pending.append(change)
    at = max(pe.t + pe.costs.configure, pe.machine.now)
    pe.at(at, pe.machine.fabric.reconfigure, (pe.x, pe.y, color))


def set_config(pe: Pe, word: int, value: int) -> None:
    """Write a register by word address."""
    word = space.word_of(word)
    color, switch = space.color_of(word), space.switch_color_of(word)
    if color is not None:
        _change(pe, color, lambda router: router.set_color_word(value))
    elif switch is not None:
        _change(pe, switch, lambda router: router.set_switch_word(value))
    elif word in space.FILTERS:
        number, field = divmod(word - space.FILTERS.start, space.FILTER_WORDS)
        _change(pe, number, lambda router: router.set_filter(field, value))
    elif word == space.TIMESTAMP.start:
        tsc_reset(pe)
    elif word == space.PERF_CONTROL:
        (tsc_enable if value & 1 else tsc_disable)(pe)
    else:
        pe.registers[word] = value


def initial_setting(pe: Pe, word: int, value: int) -> None:
    """A setting that a program starts with: a register, or a priority."""
    if word == space.THREAD_PRIORITY:
        thread_priority(pe, value)
    elif word in space.TASK_PRIORITIES:
        task_priority(pe, *divmod(word - space.TASK_PRIORITIES.start, 256), value)
    else:
        set_config(pe, word, value)


def reset_routes(pe: Pe, color: int, rx: int, tx: int) -> None:
    """New inputs and outputs (bit masks by direction)."""

    def change(router: Router) -> None:
        router.masks = (
            tuple(d for d in range(5) if rx >> d & 1),
            tuple(d for d in range(5) if tx >> d & 1),
        )

    _change(pe, color, change)


def switch_position(pe: Pe, color: int, position: int) -> None:
    """Set the present switch position."""

    def change(router: Router) -> None:
        router.position = position

    _change(pe, color, change)


def switch_invalid(pe: Pe, color: int) -> None:
    """Forget positions 1 to 3."""

    def change(router: Router) -> None:
        router.positions = [None, None, None]

    _change(pe, color, change)


def switch_set(pe: Pe, color: int, position: int, direction: int, is_rx: int) -> None:
    """Define one switch position."""

    def change(router: Router) -> None:
        router.positions[position - 1] = (direction, None) if is_rx else (None, direction)
        router.selects[position - 1] = bool(is_rx)

    _change(pe, color, change)


def switch_both(pe: Pe, color: int, position: int, rx: int, tx: int) -> None:
    """Define a switch position that names input and output."""

    def change(router: Router) -> None:
        router.positions[position - 1] = (rx, tx)
        router.selects[position - 1] = True

    _change(pe, color, change)


def teardown_exit(pe: Pe, color: int) -> None:
    """Traffic of a color may flow again."""

    def change(router: Router) -> None:
        router.teardown = False

    _change(pe, color, change)


def teardown_toggle(pe: Pe, color: int) -> None:
    """Toggle the teardown bit."""

    def change(router: Router) -> None:
        router.teardown = not router.teardown

    _change(pe, color, change)


def teardown_pending(pe: Pe, color: int) -> bool:
    """Whether a color is being torn down."""
    return _present(pe, color).teardown


# --- priorities ---


def task_priority(pe: Pe, is_data: int, number: int, high: int) -> None:
    """Put a task before those of low priority, or back among them."""
    key = ("wavelet", pe.queue_color(number)) if is_data else ("local", number)
    if high:
        pe.urgent.add(key)
    else:
        pe.urgent.discard(key)


def thread_priority(pe: Pe, level: int) -> None:
    """Place code among the microthreads: from between low and medium to beside high."""
    pe.rank = (0, 1, 1, 2)[level]


# --- time ---


def tsc_enable(pe: Pe) -> None:
    """Start the counter from zero."""
    pe.tsc_base, pe.tsc_frozen = 0, None


def tsc_disable(pe: Pe) -> None:
    """Stop the counter."""
    pe.tsc_frozen = pe.t - pe.tsc_base


def tsc_reset(pe: Pe) -> None:
    """Set the counter to zero."""
    pe.tsc_base = pe.t


def _tsc(pe: Pe) -> int:
    return pe.tsc_frozen if pe.tsc_frozen is not None else pe.t - pe.tsc_base


def tsc_read(pe: Pe, addr: int) -> None:
    """Store the 48-bit counter as three words."""
    value = _tsc(pe)
    pe.mem[addr : addr + 6] = value.to_bytes(6, "little")


# --- traces and prints ---


def _trace(kind: str) -> Callable[..., None]:
    def record(pe: Pe, key: int, *value: Any) -> None:
        name = pe.program.strings[key]
        recorded: Any = pe.t if kind == "time" else value[0]
        if kind == "string":
            recorded = pe.program.strings[recorded]
        pe.traces.setdefault(name, []).append((kind, recorded))

    return record


def _print(pe: Pe, text: str) -> None:
    pe.log += text
    while "\n" in pe.log:
        line, pe.log = pe.log.split("\n", 1)
        where = pe.machine.program.offsets
        pe.machine.print_log.append(f"@{pe.t} P{pe.x + where[0]}.{pe.y + where[1]}: {line}")


def _printer(form: Callable[..., str]) -> Callable[..., None]:
    def write_value(pe: Pe, *value: Any) -> None:
        pe.t += pe.costs.print_call
        _print(pe, form(*value))

    return write_value


def print_string(pe: Pe, number: int) -> None:
    """Print a string constant."""
    pe.t += pe.costs.print_call
    _print(pe, pe.program.strings[number])


def print_coords(pe: Pe) -> None:
    """Print the coordinates of the PE."""
    _print(pe, f"PE({pe.x},{pe.y}): ")


EFFECTS: dict[str, Callable[..., Any]] = {
    "task_priority": task_priority, "thread_priority": thread_priority,
    "get_config": get_config, "set_config": set_config, "reset_routes": reset_routes,
    "switch_position": switch_position, "switch_invalid": switch_invalid,
    "switch_set": switch_set, "switch_both": switch_both, "teardown_exit": teardown_exit,
    "teardown_toggle": teardown_toggle, "teardown_pending": teardown_pending,
    "tsc_enable": tsc_enable, "tsc_disable": tsc_disable, "tsc_reset": tsc_reset,
    "tsc_read": tsc_read, "print_string": print_string, "print_coords": print_coords,
    "print_number": _printer(str), "print_hex": _printer(lambda v, w: f"{v:0{w}X}"),
    "print_binary": _printer(lambda v, w: f"{v:0{w}b}"),
    "print_float": _printer(lambda v: f"{v:g}"),
    **{f"trace_{k}": _trace(k) for k in ("time", "string", "bool", "u8", "i8", "u16", "i16",
                                         "u32", "i32", "f16", "f32")},
}  # fmt: skip
