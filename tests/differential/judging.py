"""Compiling and running a case, and what came of it."""

from __future__ import annotations

import signal
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from answering import answers
from bounded import Bounded
from cases import AnyCase, Case, Unsharp, expected
from draw_checkpoints import Checkpoint
from kept_weights import shapes_of
from running import RUNNERS

import meshc
from meshc import MeshcError
from meshc.backends.cuda import from_json
from meshc.ir.core import Op
from meshc.ir.ops import graph, tile
from meshc.passes.mesh.forms import FORMS
from meshc.passes.mesh.forms.form import Form
from meshc.passes.mesh.forms.lowering import Lowering

LIMIT_SECONDS = 120
"""Of processor time, compilers left out, so that a busy machine changes nothing."""


@dataclass(frozen=True)
class Outcome:
    """``kind`` is match, refused, mismatch or fault; ``code`` that of a refusal or the exception's
    name; ``detail`` what happened; ``ratio`` the largest error in units of its bound."""

    kind: str
    code: str = ""
    detail: str = ""
    ratio: float = 0.0

    def is_like(self, other: Outcome) -> bool:
        """Whether both are the same problem, as far as can be told."""
        return (self.kind, self.code) == (other.kind, other.code)


class TooLong(Exception):
    """A case that took longer than it may."""


def judge(case: AnyCase) -> Outcome:
    """Compile and run ``case``; compare with the reference."""
    with tempfile.TemporaryDirectory(prefix="differential-") as name, _limit(LIMIT_SECONDS):
        folder = Path(name)
        try:
            compiled = compile_case(case, folder)
        except MeshcError as error:
            codes = [d.code for d in error.diagnostics if d.severity == "error"]
            return Outcome("refused", codes[0] if codes else "?", str(error))
        except Exception as error:
            return fault(error)
        odd = other_sums(compiled, case.kinds.sums)
        if odd:
            return Outcome("mismatch", "sums", odd)
        if "keep_quantised" in case.options and isinstance(case, Case):
            case = replace(case, kept=kept_shapes(compiled))
        try:
            run = answers if case.form == "answers" else RUNNERS[case.target]
            found, chosen = run(case, compiled, folder)
        except Exception as error:
            return fault(error)
    try:
        wanted = expected(case, chosen)
    except Unsharp as blurred:
        return Outcome("refused", "unsharp", str(blurred))  # with the codes of its weights
    return compare(wanted, found) if found else compare_tokens(wanted, chosen)


def kept_shapes(compiled: meshc.Compiled) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What a program has of weights that stay quantised, by name."""
    if "manifest.json" in compiled.files:
        return tuple(shapes_of(from_json(compiled.files["manifest.json"])).items())
    module = compiled.modules["decode"]
    ports = (port for port in module.ports if "." in port.name)
    return tuple((port.name, tuple(port.tensor.shape(module.dims))) for port in ports)


def compile_case(case: AnyCase, folder: Path) -> meshc.Compiled:
    """What the public API makes of the text of a case, or of a checkpoint."""
    if isinstance(case, Checkpoint):
        return meshc.compile(case.place, target=case.target, **case.options)
    path = folder / "case.mesh"
    path.write_text(case.text())
    if case.target == "tasks":
        return compiled_tasks(case, path)
    with _softmax_as(case.softmax):
        return meshc.compile(path, target=case.target, **case.options)


def compiled_tasks(case: Case, path: Path) -> meshc.Compiled:
    """A decode step as a program of tasks."""
    given = {"seq": case.options["seq"], "dtype": case.options["dtype"]}
    compiled = meshc.compile(path, device="h200", phase="decode", compile_to="graph", **given)
    grain = ",".join(f"{n}={case.options[n]}" for n in ("rows", "tokens", "parts", "merge"))
    blocks = case.options["blocks"]
    passes = meshc.parse_pipeline(
        f"expand-tasks{{{grain}}},place-tasks{{blocks={blocks}}},meet,fold-scratch"
    )
    module = meshc.PassManager(passes).run(compiled.modules["decode"])
    return replace(compiled, modules={"decode": meshc.parse(meshc.print_module(module))})


_SUMS = ("gemm", "expert_gemm", "combine", "row_sum", "square_sum")


def other_sums(compiled: meshc.Compiled, kind: str) -> str:
    """The first call of a program of cores that adds up in another type than ``kind``; empty where
    none does. Of a deep program rounding explains more than sums in f16 are off by."""
    for module in compiled.modules.values():
        for op in module.walk() if module.level == "tile" else ():
            if isinstance(op, tile.Compute) and op.kernel in _SUMS:
                buffer = op.views()[0].buffer
                if buffer.type.dtype.value != kind:
                    return f"{op.kernel} adds up in {buffer} : {buffer.type}, not in {kind}"
    return ""


@contextmanager
def _softmax_as(name: str) -> Iterator[None]:
    """Inside, softmaxes that have the form ``name`` have no other."""
    usual = FORMS[graph.Softmax]

    def forms(way: Lowering, op: Op) -> list[Form]:
        found = usual(way, op)
        return [form for form in found if form.name == name] or found

    FORMS[graph.Softmax] = forms  # type: ignore[index]
    try:
        yield
    finally:
        FORMS[graph.Softmax] = usual  # type: ignore[index]


def compare(wanted: Sequence[Sequence[Bounded]], found: Sequence[Sequence[np.ndarray]]) -> Outcome:
    """Whether every element of every result of every run lies within its bound."""
    worst, place = 0.0, ""
    for run, (results, arrays) in enumerate(zip(wanted, found, strict=True)):
        if len(results) != len(arrays):
            return Outcome("mismatch", "results", f"{len(arrays)} results, not {len(results)}")
        for number, (result, array) in enumerate(zip(results, arrays, strict=True)):
            if array.shape != result.value.shape:
                detail = f"result {number} is {array.shape}, not {result.value.shape}"
                return Outcome("mismatch", "shape", detail)
            off = np.abs(array - result.value)
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio = np.where(np.isfinite(array), off / result.error, np.inf)
            ratio = np.where(off == 0, 0.0, ratio)
            if ratio.max() > worst:
                worst = float(ratio.max())
                at = np.unravel_index(int(ratio.argmax()), ratio.shape)
                place = (
                    f"run {run}, result {number} {tuple(map(int, at))}: {array[at]:.6g}, not "
                    f"{result.value[at]:.6g}; rounding explains {result.error[at]:.3g}"
                )
    if worst > 1:
        return Outcome("mismatch", "numbers", place, worst)
    return Outcome("match", ratio=worst)


def compare_tokens(wanted: Sequence[Sequence[Bounded]], chosen: Sequence[int]) -> Outcome:
    """Whether each token that was chosen may have the largest logit."""
    rows = [result for results in wanted for result in results]
    for number, (row, token) in enumerate(zip(rows, chosen, strict=True)):
        value, error = row.value.ravel(), row.error.ravel()
        if value[token] + error[token] < (value - error).max():
            words = f"token {number} is {token} of {value[token]:.6g}, not {int(value.argmax())}"
            return Outcome("mismatch", "tokens", f"{words} of {value.max():.6g}")
    return Outcome("match")


def fault(error: Exception) -> Outcome:
    """What an exception that is no refusal is counted as."""
    lines = traceback.format_exception(error)
    return Outcome("fault", type(error).__name__, "".join(lines[-4:]))


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    """Raise :class:`TooLong` in the body once it has taken ``seconds``."""

    def end(number: int, frame: object) -> None:
        raise TooLong(f"more than {seconds} s")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
