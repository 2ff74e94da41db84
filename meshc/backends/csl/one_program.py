"""One program for both phases of a language model, or two: which it is, and why."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from meshc.backends.csl.emit import emit, with_entry
from meshc.backends.csl.host_file import Vocabulary
from meshc.backends.csl.phases_file import reads_prompts
from meshc.backends.request import CompileRequest
from meshc.backends.target import NO_ROOM
from meshc.backends.target_options import CslOptions, MeshOptions
from meshc.ir.module import Module
from meshc.ir.ops.tile import scalars_of_rounds
from meshc.passes.manager import PassManager
from meshc.passes.tile.phases.joining import Joint, Weight, joined, weights_of_both
from meshc.pipelines import GIVEN, joining_passes, resource_passes
from meshc.support.diagnostics import Diagnostics, MeshcError, fail
from meshc.verify import check_fact

AUTO, ONE, COPIED, MOVED, TWO = "auto", "one", "copied", "moved", "two"
"""How programs hold the phases: one for both with a ``copied`` set of the weights that lie
differently, or with weights ``moved`` in between; a program each (``two``). ``auto`` is the first
of these that there is, ``one`` the first but ``two``."""
_STATEMENTS_OF_A_MOVE = 23
"""Statements that a move of a weight along a line becomes."""


@dataclass(frozen=True)
class Choice:
    """The form that was taken, and why: bytes of each form that was tried, or what refused it.

    ``files`` are those of one program, without the folders of phases; None where each phase has a
    program of its own.
    """

    form: str
    tried: Mapping[str, Mapping[str, Any]]
    files: dict[str, str] | None = None

    @property
    def told(self) -> dict[str, Any]:
        """What ``report.json`` says."""
        return {"form": self.form, **self.tried}

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why forms that were tried are refused."""
        each = ((name, why.get("refused")) for name, why in self.tried.items())
        return tuple(f"{name}: {refused}" for name, refused in each if refused)

    @property
    def words(self) -> str:
        """The form and the reasons, in words."""
        said = self.refusals
        what = "a program for each phase" if self.form == TWO else "one program for both phases"
        kept = {COPIED: ", a copy of weights for each", MOVED: ", whose weights move in between"}
        return f"{what}{kept.get(self.form, '')}" + (f" ({'; '.join(said)})" if said else "")


def choose(
    request: CompileRequest,
    modules: Mapping[str, Module],
    vocabulary: Vocabulary | None,
    report: Diagnostics,
) -> Choice:
    """The form that ``request`` asks for, of tile-level ``modules``. Raises what refuses a form
    that was asked for by name."""
    asked = request.options_of(CslOptions)
    if asked.phases == TWO:
        return Choice(TWO, {})
    if vocabulary is None or not reads_prompts(modules):
        if asked.joined:
            fail(
                "one-program",
                "there are no two phases, a prompt's and a step's, that one program could hold",
                help="leave out --phases",
            )
        return Choice(TWO, {})
    tried: dict[str, dict[str, Any]] = {}
    codes: set[str] = set()
    if scalars_of_rounds(modules["decode"]):
        several = "steps take several requests, and one program takes one"
        return _two(request, {ONE: {"refused": several}}, codes, report)
    wanted = (asked.phases,) if asked.phases in (COPIED, MOVED) else (COPIED, MOVED)
    weights = weights_of_both(modules["prefill"], modules["decode"])
    for form in wanted:
        try:
            files, told = form_of(form, request, modules, weights, vocabulary, tried)
        except MeshcError as refusal:
            first = refusal.diagnostics[0]
            codes.add(first.code)
            why = f"{first.message} ({first.code}{_remedy(first.code, request)})"
            tried[form] = {**tried.get(form, {}), "refused": why}
            continue
        tried[form] = told
        choice = Choice(form, tried, files)
        report.remark("one-program", choice.words)
        return _with_reasons(choice)
    return _two(request, tried, codes, report)


def refuse(reasons: Sequence[str], codes: Collection[str]) -> NoReturn:
    """Fail with ``one-program`` for these ``reasons``, refusals of these ``codes``."""
    more = ", or say more cores (--mesh)" if NO_ROOM & {*codes} else ""
    fail("one-program", "no program holds both phases", None, reasons, f"leave out --phases{more}")


def _two(
    request: CompileRequest,
    tried: Mapping[str, Mapping[str, Any]],
    codes: Collection[str],
    report: Diagnostics,
) -> Choice:
    """A program for each phase, since what was ``tried`` is refused for reasons of these ``codes``.
    Raises ``one-program`` where one program was asked for."""
    choice = Choice(TWO, tried)
    if request.options_of(CslOptions).joined:
        refuse(choice.refusals, codes)
    report.remark("one-program", choice.words)
    return choice


def form_of(
    form: str,
    request: CompileRequest,
    modules: Mapping[str, Module],
    weights: Sequence[Weight],
    vocabulary: Vocabulary | None,
    tried: dict[str, dict[str, Any]],
) -> tuple[dict[str, str], dict[str, Any]]:
    """The files of a form, ``copied`` or ``moved``, and what is told of it; ``tried`` has its bytes
    even if it is refused. Moving is for weights whose copies take more than the code of their
    moves, unless it was asked for by name. Raises ``one-program``, ``csl-memory-full`` and what
    passes and the back end raise."""
    asked = request.options_of(CslOptions)
    known = [weight for weight in weights if weight.moves] if form == MOVED else []
    moved = [w for w in known if asked.phases == MOVED or _worth(w, modules)]
    if form == MOVED and not moved:
        fail("one-program", _nothing_moves(weights))
    joint = joined(modules["prefill"], modules["decode"], moved)
    passes = [*joining_passes(), *resource_passes(asked.portable)]
    for fact in GIVEN["tile"]:
        check_fact(joint.module, fact)
        joint.module.holds.add(fact)
    module = PassManager(passes).run(joint.module)
    files = emit({"model": module}, asked.portable, vocabulary, full=True)
    found = json.loads(files["report.json"])
    memory = found["memory"]
    told = {
        "bytes": memory["data"] + memory["padding"] + memory["code"]["bytes"],
        "left": memory["left"],
        **_weights(joint),
        "cycles": found["predicted_cycles"],
    }
    tried[form] = told
    if memory["left"] < 0:
        fail("csl-memory-full", f"{-memory['left']} bytes of a core are short")
    return files, told


def _worth(weight: Weight, modules: Mapping[str, Module]) -> bool:
    """Whether a copy of a weight takes more than the code of its moves."""
    device = modules["decode"].the_device()
    each = device.real("statement_bytes") * (1 + device.real("code_margin"))
    moves = weight.moves or ()
    return bool(moves) and weight.bytes > each * _STATEMENTS_OF_A_MOVE * len(moves)


def _remedy(code: str, request: CompileRequest) -> str:
    """What takes fewer queues: in natural order, chains of reductions are parts of the rings of
    products and so no channels of their own."""
    asked = any(text.startswith("gemm=") for text in request.options_of(MeshOptions).algo)
    return "; --algo gemm=cannon takes fewer" if code == "too-many-routes" and not asked else ""


def _nothing_moves(weights: Sequence[Weight]) -> str:
    unknown = [name for weight in weights if weight.moves is None for name in weight.tensors]
    if not unknown:
        return "no weight is so large that moving it would save memory"
    names = ", ".join(unknown)
    return (
        f"no moves along rows and columns are known that bring {names} from where prefill has them "
        "to where decode wants them"
    )


def _weights(joint: Joint) -> dict[str, Any]:
    """Bytes of the weights that both phases have, by what becomes of them."""
    kinds = {"alike": joint.alike, "copied": joint.copied, "moved": joint.moved}
    return {f"{kind}_bytes": sum(w.bytes for w in ws) for kind, ws in kinds.items()}


def _with_reasons(choice: Choice) -> Choice:
    """The same with the reasons in ``report.json``."""
    assert choice.files is not None
    files = {**choice.files}
    files["report.json"] = with_entry(files["report.json"], "phases", choice.told)
    return Choice(choice.form, choice.tried, files)
