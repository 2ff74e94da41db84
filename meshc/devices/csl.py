"""What a CSL program may take of a core when it is to run on one device, or on several alike.

A device is one for CSL when it says what the CSL compiler calls its architecture. What a portable
program takes must be there on every device of the catalogue that has an architecture of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from meshc.devices.catalogue import device, device_names
from meshc.devices.device import Device, Resource, Routing
from meshc.support.declared_values import toml_of
from meshc.support.diagnostics import fail

USUAL = "wse3"
"""The device of programs for which none is named."""


@dataclass(frozen=True)
class Targets:
    """The ``devices`` that a program is for, one for each architecture, by its name."""

    devices: tuple[Device, ...]

    def __str__(self) -> str:
        return " or ".join(each.name for each in self.devices)

    @property
    def archs(self) -> tuple[str, ...]:
        """What the compiler calls them."""
        return tuple(str(each.fact("csl_arch")) for each in self.devices)

    @property
    def colors(self) -> tuple[int, ...]:
        """Colors left to programs."""
        return self._free(lambda routing: routing.colors)

    @property
    def switch_colors(self) -> tuple[int, ...]:
        """Colors of which every router has switch positions."""
        return self._common([each.switch_colors for each in self.devices])

    @property
    def output_queues(self) -> tuple[int, ...]:
        """Output queues in the order in which programs take them: from the first on."""
        return self._free(lambda routing: routing.output_queues)

    @property
    def input_queues(self) -> tuple[int, ...]:
        """Input queues in the order in which programs take them: from the last on, so that a send
        and a receive that are under way together rarely ask for one microthread."""
        return self._free(lambda routing: routing.input_queues)[::-1]

    @property
    def task_ids(self) -> tuple[int, ...]:
        """Local task ids in the order in which programs take them: first those that are no color,
        then the others from the last on, as colors are taken from the first on."""
        free = self._free(lambda routing: routing.task_ids)
        colors = max(_routing(each).colors.total for each in self.devices)
        return tuple(sorted(free, key=lambda number: (number < colors, abs(number - colors))))

    @property
    def bound(self) -> tuple[str, ...]:
        """The architectures on which an output queue is bound to its color."""
        pairs = zip(self.archs, self.devices, strict=True)
        return tuple(arch for arch, each in pairs if each.bound_output_queues)

    def _free(self, what: Callable[[Routing], Resource]) -> tuple[int, ...]:
        return self._common([what(_routing(each)).free for each in self.devices])

    @staticmethod
    def _common(each: list[tuple[int, ...]]) -> tuple[int, ...]:
        """What is in all of ``each``, in the order of the first."""
        return tuple(number for number in each[0] if all(number in other for other in each))


@cache
def statement_cycles(arch: str = USUAL) -> dict[str, int]:
    """Cycles of statements by what they do, on devices with this name of the CSL compiler."""
    read = toml_of("meshc.devices", "csl.toml")
    return {name: entry.get("value", entry.get(arch)) for name, entry in read.items()}


def targets(own: Device, portable: bool = False) -> Targets:
    """The devices that a program for ``own`` has to run on. Raises ``csl-device`` where that takes
    no CSL."""
    catalogued = [device(name) for name in device_names()]
    known = {each.csl_arch: each for each in catalogued if each.csl_arch is not None}
    if own.csl_arch is None or own.limit("colors") is None:
        fail(
            "csl-device",
            f"no CSL is emitted for '{own.name}', which the CSL compiler has no name for",
            help=f"choose {' or '.join(each.name for each in known.values())} with --device, or a "
            "file of a device that gives 'csl_arch'",
        )
    if not portable:
        return Targets((own,))
    every = {**known, own.csl_arch: own}
    return Targets(tuple(every[arch] for arch in sorted(every)))


def _routing(each: Device) -> Routing:
    found = each.routing
    assert found is not None  # asked for in targets()
    return found
