"""Programs of a compiled directory, ready to generate: one face for every target."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from numpy.typing import NDArray

from meshc.backends import cuda
from meshc.backends.python import load_program
from meshc.ir.batch import POSITION
from meshc.sim.machine.options import Options
from meshc.sim.machine.trace import Trace
from meshc.support.diagnostics import Diagnostics, MeshcError, fail
from meshc.support.files import read_text
from meshc.support.scratch import scratch_folder

Array = NDArray[Any]
BACKENDS: dict[str, tuple[str, ...]] = {
    "python": ("python",),
    "cuda": ("cuda-cpu", "cuda"),
    "csl": ("csl-sim",),
}
"""What runs the programs of a target, the usual one first."""
SIMULATING = frozenset({"cuda-cpu", "csl-sim"})
"""Those that stand in for another machine, whose time they do not take."""
_FILE_LIMIT_BYTES = 1 << 24


OnToken = Callable[[int, int, Array], bool]
"""Called with the number of a prompt, a token behind it and its logits; whether it is the last."""
Choose = Callable[[int, Array], int]
"""The next token, for the number of a prompt and the logits behind it."""


class Host(Protocol):
    """A loaded language model."""

    def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        on_token: OnToken,
        stop: Collection[int],
        choose: Choose,
    ) -> list[list[int]]:
        """The ids of at most ``count`` tokens that continue each of ``prompts``, all at once, as
        ``choose`` takes them. One in ``stop`` is the last, and one of which ``on_token`` returns
        true."""


@runtime_checkable
class ChoosingHost(Host, Protocol):
    """A language model whose program may choose tokens itself."""

    @property
    def most_steps(self) -> int:
        """Steps of decoding of one launch at the most; 0 where the host chooses all tokens."""

    def generate_chosen(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        on_token: Callable[[int, int], bool],
        stop: Collection[int],
        steps: int,
        draw: cuda.Draw | None,
    ) -> list[list[int]]:
        """As :meth:`Host.generate_all`, in launches of so many ``steps``: the most likely tokens,
        or those that ``draw`` says; ``on_token`` is given no logits."""


def known_backends() -> tuple[str, ...]:
    """All names of backends."""
    return tuple(name for names in BACKENDS.values() for name in names)


@dataclass(frozen=True)
class Backend:
    """What runs a program; ``device`` is the open GPU of ``cuda``.

    ``remark`` says what was chosen where nobody asked for a backend and there was a choice.
    """

    name: str
    device: cuda.Device | None = None
    remark: str = ""


@contextmanager
def opened(target: str, name: str = "") -> Iterator[Backend]:
    """The backend called ``name``, or the usual one of ``target``, before anything is compiled or
    read for it. Usual for CUDA is a GPU that runs the kernels, else the CPU.

    Raises ``bad-argument`` for another target's backend, and what :class:`cuda.Device` does.
    """
    _check_fits(target, name)
    if target == "cuda" and name != "cuda-cpu":
        device, remark = _device(required=bool(name))
        if device is None:
            yield Backend("cuda-cpu", None, remark)
            return
        with device:
            yield Backend("cuda", device, remark)
        return
    yield Backend(name or BACKENDS[target][0])


def _device(required: bool) -> tuple[cuda.Device | None, str]:
    """The GPU, or None where there is none and it is not ``required``; and what was found."""
    try:
        device = cuda.Device(cuda.own_gpu())
    except MeshcError as problem:
        first = problem.diagnostics[0]
        if required or first.code not in ("cuda-driver", "cuda-device"):
            raise
        return None, f"kernels run on the CPU, which takes long: {first.message}"
    return device, "" if required else f"kernels run on {device.facts.words()}"


def _check_fits(target: str, name: str) -> None:
    fitting = BACKENDS.get(target, ())
    if not fitting:
        known = " or ".join(BACKENDS)
        fail(
            "bad-argument",
            f"meshc runs no programs for --target {target}",
            help=f"run takes --target {known}",
        )
    if name and name not in fitting:
        fail(
            "bad-argument",
            f"a program for {target} does not run with --backend {name}",
            help=f"it runs with {', '.join(fitting)}",
        )


class PythonHost:
    """An emitted Python program in this process, with its weights packed onto its cores.

    What the emitted host refuses is diagnosed as ``run-refused``.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, Array]) -> None:
        """``folder`` is not needed any more afterwards. Raises ``no-program``, ``run-refused``."""
        self._main = load_program(folder)
        with self._refusals():
            self._program = self._main.load(tensors)

    def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        on_token: OnToken,
        stop: Collection[int],
        choose: Choose,
    ) -> list[list[int]]:
        """See :class:`Host`."""
        with self._refusals():
            return list(self._program.generate_all(prompts, count, on_token, stop, choose))

    def run(
        self, arrays: Mapping[str, Array], scalars: Mapping[str, int | Sequence[int]]
    ) -> dict[str, Array]:
        """The outputs of a tensor program by name. Raises ``run-refused``."""
        known = self._program.phase.scalars
        if unknown := [name for name in scalars if name not in known]:
            fail("run-refused", f"the program has no run-time scalar '{unknown[0]}'")
        with self._refusals():
            found: dict[str, Array] = self._program.run(arrays, **scalars)
        return found

    @property
    def requests(self) -> int:
        """Requests that a language model has caches for."""
        return int(self._program.batch)

    @property
    def vocab(self) -> int:
        """Tokens of the vocabulary."""
        return int(self._program.vocab)

    @property
    def capacity(self) -> int:
        """Tokens that fit the caches of a request."""
        return int(self._program.capacity)

    @property
    def most(self) -> int:
        """Tokens of a prompt that one run reads at most."""
        prefill = self._program.prefill
        return self.capacity if prefill is None else int(prefill.scalars["len"][1])

    @property
    def multiple(self) -> int:
        """Chunks of prompts begin at multiples of so many tokens."""
        prefill = self._program.prefill
        return int(prefill.multiples.get(POSITION, 1)) if prefill is not None else 1

    @property
    def grouped(self) -> bool:
        """Whether prompts may pass some of the layers at once."""
        return bool(self._program.loops)

    @property
    def cuts_prompts(self) -> bool:
        """Whether prompts may be read piece by piece."""
        prefill = self._program.prefill
        return prefill is None or POSITION in prefill.scalars

    def check_serves(self) -> None:
        """Raise ``bad-argument`` for a program whose steps continue all of several requests, and
        ``rope-length`` for one that is right for long prompts alone: nobody looks at these here."""
        program = self._program
        if program.batch > 1 and program.decode.scalars[POSITION][0] >= 0:
            fail(
                "bad-argument",
                f"the program continues its {program.batch} requests together, and those of a "
                "server come and go",
                help="compile it with --serving chunks, or for one request",
            )
        if program.least > 1:
            fail(
                "rope-length",
                f"the program is for sequences of {program.least} tokens or more, and a server "
                "takes prompts that are shorter",
                help=f"compile for shorter sequences: --seq {program.least - 1}",
            )

    def begin(self, request: int, known: int) -> None:
        """See :class:`meshc.serving.engines.WholeEngine`."""
        if not known:
            self._program.begin(request)

    def embedded(self, ids: Sequence[int], position: int) -> Array:
        """See :class:`meshc.serving.engines.Engine`."""
        found: Array = self._program.embedded(ids, position)
        return found

    def read(self, request: int, rows: Array, position: int, layers: range) -> Array:
        """See :class:`meshc.serving.engines.Engine`; a program without groups of layers passes all.
        Raises ``run-refused``."""
        with self._refusals():
            given = layers if self._program.loops else None
            found: Array = self._program.read(request, rows, position, given)
        return found

    def step(self, tokens: Mapping[int, tuple[int, int]]) -> dict[int, Array]:
        """See :class:`meshc.serving.engines.Engine`. Raises ``run-refused``."""
        with self._refusals():
            found: dict[int, Array] = self._program.step(tokens)
        return found

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (self._main.HostError, self._main.PortError) as error:
            fail("run-refused", str(error))


class WaferHost:
    """An emitted CSL program on the fabric simulator, or the two of a prompt and of a step behind
    it, of which the host puts one after the other on the PEs.

    What its host program refuses is diagnosed as ``run-refused``.
    """

    def __init__(
        self, folder: Path, tensors: Mapping[str, Array], trace: Path | Trace | None = None
    ) -> None:
        """``folder`` is not needed any more afterwards. ``trace`` is told what happens in a run of
        one program, or is where :meth:`stop` writes it. Queues hold what the hardware's do. Raises
        ``no-tokens``, ``run-refused`` and what compiling the program raises."""
        # The simulator takes a tenth of the time of a start, and only these programs need it.
        simulator = import_module("meshc.sim.running")
        with ExitStack() as stack:
            scratch = stack.enter_context(scratch_folder())
            phases = sorted(path.parent for path in folder.glob("*/layout.csl"))
            for phase in phases:
                simulator.compile_folder(phase, scratch / "out" / phase.name)
            if not phases:
                simulator.compile_folder(folder, scratch / "out")
            options = Options(strict_queues=True, files=False)
            if isinstance(trace, Path):
                options = replace(options, trace_file=str(trace))
            elif trace is not None:
                options = replace(options, tracer=lambda: trace)
            names = simulator.host_names(folder / "run.py", options)
            if "Model" not in names:
                fail(
                    "no-tokens",
                    "this CSL program is no decode step of a language model",
                    help="its run.py maps arrays to arrays: meshc sim run run.py --name out",
                )
            with _refusals_of_host():
                self._model = names["Model"](str(scratch / "out"), tensors.__getitem__)
            # What the end of a run writes lies there too.
            self._kept = stack.pop_all()
            weakref.finalize(self, self._kept.close)

    def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        count: int,
        on_token: OnToken,
        stop: Collection[int],
        choose: Choose,
    ) -> list[list[int]]:
        """See :class:`Host`; a program takes one prompt after the other."""
        with _refusals_of_host():
            if hasattr(self._model, "generate_all"):
                how = {"stop": stop, "choose": choose}
                return list(self._model.generate_all(prompts, count, on_token, **how))
            found = []
            for number, prompt in enumerate(prompts):
                tell = partial(on_token, number)
                # The program counts the prompts that it is given, of which there is one at a time.
                chosen = partial(_of_prompt, choose, number)
                found.append(self._model.generate(list(prompt), count, tell, stop, chosen))
        return found

    def stop(self) -> None:
        """Let the program end, which writes the trace."""
        with self._kept:
            self._model.stop()


def _of_prompt(choose: Choose, number: int, _: int, logits: Array) -> int:
    return choose(number, logits)


@contextmanager
def _refusals_of_host() -> Iterator[None]:
    """An emitted host program leaves with the words of its refusal."""
    try:
        yield
    except SystemExit as refusal:
        fail("run-refused", str(refusal))


def load_host(
    folder: Path,
    backend: Backend,
    tensors: Mapping[str, Array],
    report: Diagnostics,
    trace: Path | Trace | None = None,
    packed: Path | None = None,
) -> Host:
    """The language model in ``folder`` with its weights, ready to generate; ``report`` is told
    where a GPU is another than the program is for. ``trace`` is for the simulator of wafers; the
    folder ``packed`` keeps weights that are packed for GPUs."""
    if backend.name == "python":
        return PythonHost(folder, tensors)
    if backend.name == "csl-sim":
        return WaferHost(folder, tensors, trace)
    return cuda.LanguageModel(*_on_gpu(folder, backend, tensors, report, packed))


def load_engine(
    folder: Path,
    backend: Backend,
    tensors: Mapping[str, Array],
    report: Diagnostics,
    packed: Path | None = None,
) -> PythonHost | cuda.PagedModel:
    """The language model in ``folder``, ready to serve, with its weights; arguments are those of
    :func:`load_host`. Raises what :meth:`PythonHost.check_serves` does."""
    if backend.name == "python":
        host = PythonHost(folder, tensors)
        host.check_serves()
        return host
    return cuda.PagedModel(*_on_gpu(folder, backend, tensors, report, packed))


def _on_gpu(
    folder: Path,
    backend: Backend,
    tensors: Mapping[str, Array],
    report: Diagnostics,
    packed: Path | None,
) -> tuple[cuda.StepProgram, cuda.Machine, Mapping[str, Array], cuda.Keeping | None]:
    """What a model on a GPU, or on the CPU in its place, is made of."""
    program = cuda.from_json(read_text(folder / cuda.MANIFEST, _FILE_LIMIT_BYTES).text)
    _check_library(folder)
    texts = {
        kernel.file: read_text(folder / Path(kernel.file).name, _FILE_LIMIT_BYTES).text
        for kernel in program.kernels.values()
    }
    machine = _machine(program, texts, backend.device)
    if backend.device is not None and (
        words := cuda.other_than(backend.device.facts, program.device)
    ):
        report.remark("backend", words)
    keeping = None if packed is None else cuda.Keeping(packed, partial(report.remark, "cache"))
    return program, machine, tensors, keeping


def _check_library(folder: Path) -> None:
    """Fail with ``no-program`` for CUDA whose headers are others than those that its kernels would
    be compiled with: of another version of meshc, or changed by hand."""
    for name, text in cuda.headers().items():
        if read_text(folder / name, _FILE_LIMIT_BYTES).text != text:
            fail(
                "no-program",
                f"'{folder / name}' is not that of this version of meshc, with which kernels are "
                "compiled",
                help="compile the model again",
            )


def _machine(
    program: cuda.StepProgram, texts: Mapping[str, str], device: cuda.Device | None
) -> cuda.Machine:
    """What runs the kernels: a GPU or the CPU in its place; of a program of several GPUs that of
    this process, or all of them on the CPU."""
    chosen = cuda.toolchain_for(sum(weight.bytes for weight in program.weights.values()))
    if program.ranks is None and device is None:
        return cuda.CpuMachine(program.kernels, texts, toolchain=chosen)
    if program.ranks is None:
        assert device is not None
        return cuda.GpuMachine(device, program.device, program.kernels, texts)
    if device is None:
        return cuda.CpuNode(program.kernels, texts, program.ranks.count, toolchain=chosen)
    peers = cuda.TorchPeers()
    return cuda.RankMachine(device, program.device, program.kernels, texts, program.ranks, peers)
