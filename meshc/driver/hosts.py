"""Programs of a compiled directory, ready to generate: one face for every target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from meshc.backends import cuda
from meshc.backends.python import load_program
from meshc.support.diagnostics import fail
from meshc.support.files import read_text

Array = NDArray[Any]
BACKENDS: dict[str, tuple[str, ...]] = {"python": ("python",), "cuda": ("cuda-cpu", "cuda")}
"""What runs the programs of a target, the usual one first."""
_FILE_LIMIT_BYTES = 1 << 24


class Generator(Protocol):
    """A loaded language model."""

    def generate(
        self,
        prompt: Sequence[int],
        count: int,
        on_token: Callable[[int, Array], None],
        stop: Collection[int] = (),
    ) -> Iterator[int]:
        """Greedy tokens behind ``prompt``, at most ``count``, up to one in ``stop``."""


def known_backends() -> tuple[str, ...]:
    """All names of backends."""
    return tuple(name for names in BACKENDS.values() for name in names)


def backend_of(target: str, backend: str) -> str:
    """``backend``, or the usual one of ``target``. Raises ``bad-argument`` for another target's."""
    fitting = BACKENDS[target]
    if backend and backend not in fitting:
        fail(
            "bad-argument",
            f"a program for {target} does not run with --backend {backend}",
            help=f"it runs with {', '.join(fitting)}",
        )
    return backend or fitting[0]


@contextmanager
def loaded_host(folder: Path, backend: str, tensors: Mapping[str, Array]) -> Iterator[Generator]:
    """The program in ``folder`` with its weights; what the emitted host refuses is diagnosed as
    ``run-refused``."""
    if backend == "python":
        main = load_program(folder)
        try:
            yield main.load(tensors)
        except (main.HostError, main.PortError) as error:
            fail("run-refused", str(error))
        return
    program = cuda.from_json(read_text(folder / cuda.MANIFEST, _FILE_LIMIT_BYTES).text)
    texts = {
        kernel.file: read_text(folder / Path(kernel.file).name, _FILE_LIMIT_BYTES).text
        for kernel in program.kernels.values()
    }
    if backend == "cuda-cpu":
        yield cuda.LanguageModel(program, cuda.CpuMachine(program.kernels, texts), tensors)
        return
    with cuda.Device() as device:
        yield cuda.LanguageModel(program, cuda.GpuMachine(device, program.kernels, texts), tensors)
