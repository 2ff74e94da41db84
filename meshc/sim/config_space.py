"""Word addresses of the memory-mapped registers that the simulator models.

Color and switch registers lie where public programs write them: those of WSE-2 and, for colors of
WSE-3, at 0x7c00. The other addresses are the simulator's own; ``<tile_config>`` names them.
"""

from __future__ import annotations

FIRST_BYTE = 0xF000  # byte addresses from here on are registers
COLOR_BASES = (0x7F20, 0x7C00)
SWITCH_BASES = (0x7F40, 0x7C20)
COLORS = 0x20
TIMESTAMP = range(0x7F80, 0x7F83)
PERF_CONTROL = 0x7F83
INPUT_STATUS = 0x7F88
OUTPUT_STATUS = 0x7F89
TEARDOWN_PENDING = range(0x7F8A, 0x7F8C)
FLUSHED = range(0x7F8C, 0x7F8E)
FILTERS = range(0x7E40, 0x7EC0)
FILTER_WORDS = 4  # active limit, largest counter that passes, counter


def color_of(word: int) -> int | None:
    """The color whose configuration register ``word`` is."""
    return _at(word, COLOR_BASES)


def switch_color_of(word: int) -> int | None:
    """The color whose switch register ``word`` is."""
    return _at(word, SWITCH_BASES)


def _at(word: int, bases: tuple[int, ...]) -> int | None:
    return next((word - base for base in bases if 0 <= word - base < COLORS), None)


def word_of(addr: int) -> int:
    """A word address; byte addresses of registers are accepted too."""
    return addr // 2 if addr >= FIRST_BYTE else addr


# Settings of the simulator's own, behind all words that a program can name.
THREAD_PRIORITY = 0x10000
TASK_PRIORITIES = range(0x10100, 0x10300)


def task_priority_word(is_data: int, number: int) -> int:
    """The setting of the priority of a data or a local task."""
    return TASK_PRIORITIES.start + 256 * is_data + number
