"""What a compile is asked to do: a value, so that a compile is a function of its arguments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar

from meshc.backends import registry
from meshc.backends.target_options import OWN, MeshOptions, TargetOptions
from meshc.devices import Device, device
from meshc.ir.module import Level
from meshc.ir.types import DType
from meshc.pipelines import STAGES
from meshc.support.diagnostics import Diagnostics

USUAL_TARGET = registry.OWN[0]
USUAL_MESH = "8x8"
PHASES = ("prefill", "decode", "both")
SERVING = ("chunks", "layers", "layers!")
DEFAULT_SEQ = 1024
MOST_TOKENS = 1 << 24
_MAX_LAYERS = 1 << 10
IR_FORMATS = ("meshir", "mlir")
"""What IR is written in: text of its own, or MLIR's generic form."""

Options = TypeVar("Options", bound=TargetOptions)


class Rules(ABC):
    """What a request asks of its target: which options it has and which values they may have."""

    NAME: ClassVar[str]
    OPTIONS: ClassVar[type[TargetOptions]] = TargetOptions
    USUAL_DEVICE: ClassVar[str] = "ideal"
    MOST_REQUESTS: ClassVar[int] = 1
    """Requests of a step at the most."""
    OF_PROGRAMS: ClassVar[tuple[str, ...]] = ()
    """Options that no pass obeys, only what writes the files of a program."""

    @abstractmethod
    def check(self, request: CompileRequest, found: Diagnostics) -> None:
        """Add an error for each option that has no such value, or not together with others."""

    def check_device(self, device: Device) -> None:
        """Raise ``bad-argument`` for a device that programs are not made for."""
        return

    @abstractmethod
    def level(self, request: CompileRequest) -> Level:
        """The level at which the passes end."""

    @abstractmethod
    def settings(self, request: CompileRequest) -> dict[str, str]:
        """Specs of passes that differ from their defaults, by the passes' names."""


@dataclass(frozen=True, init=False)
class CompileRequest:
    """Options of a compile. Empty texts and None stand for the defaults.

    ``device`` is a name, the path of a file, or a device itself. ``seq`` is the KV capacity in
    tokens. ``dtype`` is that of activations and weights on the cores. With ``compile_to`` no
    program is made: the IR of that level is written in the format ``emit``. ``batch`` is the
    requests of a step. ``serving`` is how a program serves requests as they come: ``chunks``
    of prompts, also by ``layers`` in groups, or by those of a dense model too (``layers!``); empty
    for one that reads prompts whole. ``chunk`` is, for CSL and for a program that serves, the most
    tokens of a prompt that one run reads behind those that are cached; None for as many as the
    caches hold. For CUDA it is the tokens that kernels of many read at once, each weight once; None
    for the most by kernels where many are left, and few by tasks. ``keep_quantised`` are weights
    that stay quantised in the memory of cores, each with its format, as the pass keep-quantised
    takes them. ``passes_before`` and ``passes_after`` are pipelines inside that of the compile,
    each behind the name of the pass that they stand beside: ``partition=my-pass{option=1}``.

    All else is an option of a target and declared in the record of that target
    (:mod:`meshc.backends.target_options`). It is an argument like the others, and ``given`` has
    those that differ from their defaults, also where ``target`` has no such option, which
    :meth:`check` refuses.
    """

    target: str = USUAL_TARGET
    device: str | Device = ""
    phase: str = "both"
    seq: int | None = None
    layers: int | None = None
    dtype: str = ""
    compile_to: str = ""
    emit: str = IR_FORMATS[0]
    batch: int | None = None
    serving: str = ""
    chunk: int | None = None
    keep_quantised: tuple[str, ...] = ()
    passes_before: tuple[str, ...] = ()
    passes_after: tuple[str, ...] = ()
    given: tuple[tuple[str, Any], ...] = ()

    def __init__(
        self,
        target: str = USUAL_TARGET,
        device: str | Device = "",
        given: tuple[tuple[str, Any], ...] = (),
        **options: Any,
    ) -> None:
        """Raises TypeError for an argument that neither a request nor a target's record has, and
        for a text where several are taken."""
        common = {one.name: one.default for one in fields(self) if one.name != "given"}
        common |= {"target": target, "device": device}
        common |= {name: options.pop(name) for name in common if name in options}
        defaults = _defaults(target)
        if unknown := sorted(options.keys() - defaults.keys()):
            raise TypeError(f"a compile has no argument '{unknown[0]}'")
        kept = {**dict(given), **options}
        usual = {one.name: one.default for one in fields(self)} | defaults
        for name, value in {**common, **kept}.items():
            if isinstance(value, str) and isinstance(usual.get(name), tuple):
                raise TypeError(f"{name} takes several texts, such as ({value!r},), not {value!r}")
        asked = ((name, value) for name, value in kept.items() if value != defaults.get(name))
        for name, value in {**common, "given": tuple(sorted(asked))}.items():
            object.__setattr__(self, name, value)

    def changed(self, **changes: Any) -> CompileRequest:
        """The same with other values; arguments are those of a request."""
        same = {one.name: getattr(self, one.name) for one in fields(self)}
        return CompileRequest(**same | changes)

    def options_of(self, kind: type[Options]) -> Options:
        """The record of ``kind`` with what is asked for, whichever target that is for."""
        known = kind.names()
        return kind(**{name: value for name, value in self.given if name in known})

    @property
    def rules(self) -> Rules | None:
        """Those of the target, None where there is no such target."""
        found = registry.found_target(self.target)
        assert found is None or isinstance(found, Rules)
        return found

    @property
    def the_rules(self) -> Rules:
        """Those of the target, which is one."""
        found = self.rules
        assert found is not None, self.target
        return found

    @property
    def options(self) -> TargetOptions:
        """The record of the target."""
        return self.options_of(self.the_rules.OPTIONS)

    @property
    def device_name(self) -> str:
        """What the device is called, the target's usual one when none is asked for."""
        if isinstance(self.device, Device):
            return self.device.name
        rules = self.rules
        return self.device or (Rules.USUAL_DEVICE if rules is None else rules.USUAL_DEVICE)

    def the_device(self) -> Device:
        """The device. Raises what :func:`meshc.devices.device` does."""
        return self.device if isinstance(self.device, Device) else device(self.device_name)

    @property
    def mesh_name(self) -> str:
        """The mesh, the usual one when none is asked for."""
        return self.options_of(MeshOptions).mesh or USUAL_MESH

    @property
    def grid(self) -> str:
        """Columns x rows of the mesh, whose axes are called as the device calls them."""
        columns, rows, _ = self.the_device().axes.sizes_of(self.mesh_name)
        return f"{columns}x{rows}"

    @property
    def regions(self) -> int:
        """Regions that the layers are dealt to; 0 for as many as they need."""
        return self.the_device().axes.sizes_of(self.mesh_name)[-1]

    @property
    def rows(self) -> int:
        """Rows of cores of a region."""
        return self.the_device().axes.sizes_of(self.mesh_name)[1]

    @property
    def requests(self) -> int:
        """The requests of a step."""
        return self.batch or 1

    def level(self) -> Level:
        """The level at which the passes end."""
        return self.the_rules.level(self)

    def settings(self) -> dict[str, str]:
        """Specs of passes that differ from their defaults."""
        return self.the_rules.settings(self)

    def asked(self) -> dict[str, Any]:
        """What differs from its default, by name."""
        common = ((f.name, getattr(self, f.name), f.default) for f in fields(self))
        found = {name: value for name, value, usual in common if value != usual}
        found.pop("given", None)
        return found | dict(self.given)

    def check(self) -> None:
        """Raise every ``bad-argument`` and ``bad-mesh`` at once."""
        found = Diagnostics()
        one_of(found, "--target", self.target, registry.target_names())
        one_of(found, "--phase", self.phase, PHASES)
        one_of(found, "--dtype", self.dtype, ("", *(d.value for d in DType if d.floats)))
        one_of(found, "--compile-to", self.compile_to, ("", *STAGES))
        one_of(found, "--emit", self.emit, IR_FORMATS)
        one_of(found, "--serving", self.serving, ("", *SERVING))
        within(found, "--seq", self.seq, MOST_TOKENS)
        within(found, "--chunk", self.chunk, MOST_TOKENS)
        within(found, "--layers", self.layers, _MAX_LAYERS)
        if self.emit != IR_FORMATS[0] and not self.compile_to:
            words = "programs are written in the language of their target"
            found.error(
                "bad-argument",
                f"--emit is {self.emit}, but {words}",
                help="--compile-to names the level whose IR is written",
            )
        rules = self.rules
        if rules is not None:
            within(found, "--batch", self.batch, rules.MOST_REQUESTS)
            self._check_obeyed(found, rules)
            rules.check(self, found)
        found.raise_errors()
        self.the_device().axes.sizes_of(self.mesh_name)
        self.the_rules.check_device(self.the_device())

    def _check_obeyed(self, found: Diagnostics, rules: Rules) -> None:
        """Refuse options of other targets, and of programs where none is made."""
        own = rules.OPTIONS.names()
        for name, value in self.given:
            words = f"{flag_of(name)} is {told(value)}"
            if name not in own:
                others = " and ".join(self._targets_with(name))
                found.error(
                    "bad-argument",
                    f"{words}, but programs for --target {self.target} do not take it",
                    help=f"those for --target {others} do" if others else None,
                )
            elif self.compile_to and name in rules.OF_PROGRAMS:
                level = f"what is compiled to the {self.compile_to} level is no program yet"
                found.error("bad-argument", f"{words}, but {level}", help="leave out --compile-to")

    def _targets_with(self, name: str) -> list[str]:
        """meshc's targets that have an option ``name``."""
        return [target for target, record in OWN.items() if name in record.names()]


def argument_names(target: str = USUAL_TARGET) -> frozenset[str]:
    """The arguments of a request: what all targets are asked, and the options of meshc's own and of
    ``target``."""
    common = {one.name for one in fields(CompileRequest) if one.name != "given"}
    return frozenset(common.union(_defaults(target)))


def _defaults(target: str) -> dict[str, Any]:
    """Defaults of the options of meshc's targets, and of ``target``."""
    records: list[type[TargetOptions]] = [*OWN.values()]
    if target not in OWN:
        found = registry.found_target(target)
        records += [found.OPTIONS] if isinstance(found, Rules) else []
    return {one.name: one.default for record in records for one in record.declared()}


def flag_of(field: str) -> str:
    """The flag of ``meshc compile`` that sets ``field`` of a request."""
    return f"--{field.replace('_', '-')}"


def told(value: object) -> str:
    """The value of a field as a person types it."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "given"
    return value.name if isinstance(value, Device) else str(value)


def spec(name: str, settings: Mapping[str, str | int | None]) -> str:
    """The text of a pass with those ``settings`` that are not empty."""
    given = ",".join(f"{key}={value}" for key, value in settings.items() if value)
    return f"{name}{{{given}}}" if given else name


def one_of(found: Diagnostics, option: str, value: str, known: tuple[str, ...]) -> None:
    """Add an error to ``found`` where ``value`` is none that is ``known``."""
    if value not in known:
        choices = ", ".join(k for k in known if k)
        found.error("bad-argument", f"{option} cannot be '{value}'", help=f"it is one of {choices}")


def within(found: Diagnostics, option: str, value: int | None, most: int) -> None:
    """Add an error to ``found`` where a number is given and not 1 to ``most``."""
    if value is not None and not 1 <= value <= most:
        found.error("bad-argument", f"{option} is {value}, not 1 to {most}")
