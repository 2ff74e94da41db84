"""A compiled decode step in a folder, with machine code, for a machine that has no compiler.

    python benchmarks/gpu/prepared.py --model llama-2-7b --contexts 1024,4096,16384 -o program

writes what ``meshc compile --target cuda`` does, and the cubins of its kernels, of all that is
checked with these contexts and of the probes. Reading the folder needs neither islpy nor lark.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from checks import Case, cases
from kernels import Cubins, probes
from programs import sizes

from meshc.backends.cuda.emit import MANIFEST
from meshc.backends.cuda.program import StepProgram, from_json
from meshc.devices import device
from meshc.support.diagnostics import MeshcError
from meshc.support.files import read_text
from meshc.support.native import BuildError

CONTEXTS = (1024, 4096, 16384)
_LIMIT_BYTES = 1 << 24


@dataclass(frozen=True)
class Prepared:
    """A program, the texts of its kernels by file, and machine code where there is some."""

    program: StepProgram
    texts: dict[str, str]
    cubins: Cubins

    def cases(self) -> Iterator[Case]:
        """All checks at the sizes of the program's model."""
        found = sizes(self.program)
        gpu = device(self.program.device.name)
        return cases(found.hidden, found.vocabulary, found.dtype, gpu)


def opened(folder: Path, check: bool = True) -> Prepared:
    """The program in ``folder``; with ``check`` one of a model that :func:`sizes` knows. Raises
    MeshcError."""
    program = from_json(read_text(folder / MANIFEST, _LIMIT_BYTES).text)
    if check:
        sizes(program)
    files = {kernel.file for kernel in program.kernels.values()}
    texts = {name: read_text(folder / Path(name).name, _LIMIT_BYTES).text for name in sorted(files)}
    return Prepared(program, texts, Cubins(folder))


def compile_into(
    folder: Path, model: str, dtype: str, batch: int, capacity: int, page: int
) -> Prepared:
    """Compile a model's decode step into ``folder``. Raises MeshcError."""
    # Only here: the frontend and the passes need what a machine with a GPU may lack.
    import meshc

    options = {"dtype": dtype, "seq": capacity, "batch": batch, "page": page}
    meshc.compile(model, target="cuda", output=folder, **options)
    return opened(folder)


def add_machine_code(found: Prepared) -> int:
    """Compile and keep every text that a run loads; how many there are.

    Raises MeshcError and BuildError."""
    texts = [*found.texts.values(), *(case.text for case in found.cases()), probes()]
    texts = [text for text in dict.fromkeys(texts) if found.cubins.find(text) is None]
    found.cubins.make(texts)
    return len(texts)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which model, and how it is compiled."""
    parser.add_argument("--model", default="llama-2-7b", help="as `meshc compile` takes it")
    parser.add_argument("--contexts", type=_contexts, default=CONTEXTS, help="cached tokens")
    parser.add_argument("--batch", type=at_least_one, default=1)
    parser.add_argument("--dtype", choices=("f16", "bf16"), default="f16")
    parser.add_argument(
        "--page", type=at_least_one, default=16, help="tokens of a page of the cache"
    )


def at_least_one(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def _contexts(text: str) -> tuple[int, ...]:
    found = tuple(int(word) for word in text.split(","))
    if min(found) < 0:
        raise argparse.ArgumentTypeError("a number of cached tokens is negative")
    return found


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_options(made)
    made.add_argument("-o", "--out", type=Path, required=True, metavar="DIR")
    return made


def main(given: Sequence[str] | None = None) -> int:
    """The exit code: 1 for what is refused."""
    options = parser().parse_args(given)
    capacity = max(options.contexts) + 1
    try:
        found = compile_into(
            options.out, options.model, options.dtype, options.batch, capacity, options.page
        )  # fmt: skip
        count = add_machine_code(found)
    except (MeshcError, BuildError) as problem:
        print(problem, file=sys.stderr)
        return 1
    print(f"{options.out}: {count} cubins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
