"""Programs of a compiled directory, ready to generate."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from meshc.backends import cuda
from meshc.backends.host_protocols import Array, Backend, Choose, Loading, OnToken
from meshc.backends.python import load_program
from meshc.ir.batch import POSITION
from meshc.sim.machine.run_options import USUAL, Options
from meshc.sim.machine.trace import Trace
from meshc.support.diagnostics import MeshcError, fail
from meshc.support.files import read_text
from meshc.support.native import Toolchain
from meshc.support.scratch import scratch_folder

_FILE_LIMIT_BYTES = 1 << 24


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
        self,
        folder: Path,
        tensors: Mapping[str, Array],
        trace: Path | Trace | None = None,
        simulated: Options = USUAL,
    ) -> None:
        """``folder`` is not needed any more afterwards. ``trace`` is told what happens in a run of
        one program, or is where :meth:`stop` writes it. Queues hold what the hardware's do. Raises
        ``no-tokens``, ``run-refused`` and what compiling the program raises."""
        # The simulator takes a tenth of the time of a start, and only these programs need it.
        simulator = import_module("meshc.sim.emitted_runs")
        with ExitStack() as stack:
            scratch = stack.enter_context(scratch_folder())
            phases = sorted(path.parent for path in folder.glob("*/layout.csl"))
            for phase in phases:
                simulator.compile_folder(phase, scratch / "out" / phase.name)
            if not phases:
                simulator.compile_folder(folder, scratch / "out")
            options = replace(simulated, strict_queues=True, files=False)
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


@contextmanager
def opened_gpu(name: str) -> Iterator[Backend]:
    """A GPU that runs the kernels or, where there is none and ``name`` does not ask for it, the
    CPU. Raises what :class:`cuda.Device` does."""
    device, remark = (None, "") if name == "cuda-cpu" else _device(required=bool(name))
    if device is None:
        yield Backend("cuda-cpu", None, remark)
        return
    with device:
        yield Backend("cuda", device, remark)


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


def on_gpu(
    loading: Loading,
) -> tuple[cuda.StepProgram, cuda.Machine, Mapping[str, Array], cuda.Keeping | None]:
    """What a model on a GPU, or on the CPU in its place, is made of."""
    folder, backend, report = loading.folder, loading.backend, loading.report
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
    packed = loading.packed
    keeping = None if packed is None else cuda.Keeping(packed, partial(report.remark, "cache"))
    return program, machine, loading.tensors, keeping


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
    """What runs the kernels: a GPU or the CPU in its place; of a program of several GPUs or nodes
    that of this process, or all of them on the CPU."""
    chosen = cuda.toolchain_for(sum(weight.bytes for weight in program.weights.values()))
    if program.nodes is not None:
        return _nodes(program, texts, device, chosen)
    if program.ranks is None and device is None:
        return cuda.CpuMachine(program.kernels, texts, toolchain=chosen)
    if program.ranks is None:
        assert device is not None
        return cuda.GpuMachine(device, program.device, program.kernels, texts)
    if device is None:
        return cuda.CpuNode(program.kernels, texts, program.ranks.count, toolchain=chosen)
    peers = cuda.TorchPeers()
    return cuda.RankMachine(device, program.device, program.kernels, texts, program.ranks, peers)


def _nodes(
    program: cuda.StepProgram,
    texts: Mapping[str, str],
    device: cuda.Device | None,
    toolchain: Toolchain,
) -> cuda.Nodes:
    """All nodes on the CPU, or that of this process where it is one of several."""
    links = cuda.TorchLinks() if device is not None or cuda.started_by_torchrun() else None
    if device is not None:
        machine = cuda.GpuMachine(device, program.device, program.kernels, texts)
        return cuda.Nodes(program, [machine], links)
    assert program.nodes is not None
    first = cuda.CpuMachine(program.kernels, texts, toolchain=toolchain)
    others = 0 if links is not None else program.nodes.count - 1
    return cuda.Nodes(program, [first, *(first.twin() for _ in range(others))], links)
