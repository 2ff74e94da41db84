"""The CSL target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meshc.backends.csl.emit import check, emit, with_entry
from meshc.backends.csl.emitted_lines import emitted_lines
from meshc.backends.csl.host_file import Vocabulary
from meshc.backends.csl.one_program import Choice, choose, refuse
from meshc.backends.host_protocols import Loading
from meshc.backends.hosts import WaferHost
from meshc.backends.meshes import MeshTarget
from meshc.backends.python.host_file import HostFacts
from meshc.backends.request import CompileRequest, one_of
from meshc.backends.target import OpLines, Work, Written, check_read_by_chunks
from meshc.backends.target_options import CslOptions
from meshc.devices import Device
from meshc.devices.csl import USUAL
from meshc.ir.module import Module
from meshc.passes.instruments import Instrument
from meshc.passes.manager import PassManager
from meshc.pipelines import resource_passes
from meshc.support.diagnostics import Diagnostic, Diagnostics, in_each

HOLDING = ("auto", "one", "copied", "moved", "two")


class CslTarget(MeshTarget):
    """Programs for Cerebras wafers."""

    NAME = "csl"
    OPTIONS = CslOptions
    USUAL_DEVICE = USUAL
    MOST_REQUESTS = 64
    OF_PROGRAMS = ("portable", "phases")
    BACKENDS = ("csl-sim",)
    SUFFIX = ".csl"
    CHOOSES = True
    ONE_REQUEST = True
    FITS_MESH = True
    FOLLOWED = True

    def check(self, request: CompileRequest, found: Diagnostics) -> None:
        super().check(request, found)
        one_of(found, "--phases", request.options_of(CslOptions).phases, HOLDING)
        check_read_by_chunks(request, found)

    def made_for(self, device: Device) -> bool:
        return device.csl_arch is not None

    def steps_instead(self, request: CompileRequest, refusal: Diagnostic) -> bool:
        if refusal.code == "one-program":
            return False
        if request.options_of(CslOptions).joined:
            refuse([f"{refusal.message} ({refusal.code})"], [refusal.code])
        return True

    def write(self, work: Work) -> Written:
        modules = work.modules()
        apart = work.request.options_of(CslOptions).phases == "two"
        if not apart:  # else passes come first
            work.tell_of_writing()
        vocabulary = _vocabulary(work.host)
        choice = choose(work.request, modules, vocabulary, work.report)
        if choice.files is not None:
            return Written(modules, choice.files)
        assigned = _assigned(work.request, modules, work.report, work.instruments)
        if apart:
            work.tell_of_writing()
        portable = work.request.options_of(CslOptions).portable
        return Written(modules, _with_choice(emit(assigned, portable, vocabulary), choice))

    def load(self, loading: Loading) -> WaferHost:
        return WaferHost(loading.folder, loading.tensors, loading.trace, loading.simulated)

    def lines_of(self, request: CompileRequest, module: Module, text: str) -> OpLines:
        return emitted_lines(module, request.options_of(CslOptions).portable)


def _vocabulary(host: HostFacts) -> Vocabulary | None:
    """What the host of a program knows of tokens."""
    if host.embedding is None:
        return None
    return Vocabulary(host.embedding, host.vocab, host.capacity, host.eos, host.learned)


def _assigned(
    request: CompileRequest,
    modules: Mapping[str, Module],
    report: Diagnostics,
    instruments: Sequence[Instrument],
) -> dict[str, Module]:
    """The programs, with what each takes of a core."""
    in_each(modules, lambda phase: check(modules[phase]))
    portable = request.options_of(CslOptions).portable
    manager = PassManager(resource_passes(portable), instruments)
    return in_each(modules, lambda phase: manager.run(modules[phase], report))


def _with_choice(files: dict[str, str], choice: Choice) -> dict[str, str]:
    """The files of two programs, whose reports say why no program holds both phases."""
    if not choice.tried:
        return files
    reports = [name for name in files if name.endswith("report.json")]
    return files | {name: with_entry(files[name], "phases", choice.told) for name in reports}


TARGET = CslTarget()
