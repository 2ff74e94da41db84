"""What targets whose programs come from a mesh of cores have in common."""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshc.backends.request import CompileRequest, flag_of, one_of, spec, told
from meshc.backends.target import Target
from meshc.backends.target_options import MeshOptions
from meshc.cost.dispatching import WAYS as DISPATCHES
from meshc.cost.products import ALGORITHMS as GEMM_ALGORITHMS
from meshc.cost.reductions import TREES
from meshc.ir.module import Level, Module
from meshc.ir.ops.mesh import ALIGNMENTS, CACHE_POLICIES, RESULTS
from meshc.passes.base import Pass
from meshc.passes.mesh.forms.problem import AUTO
from meshc.passes.mesh.select_gemm import NATURAL
from meshc.pipelines import KEEPING, STAGES, pipeline_from
from meshc.support.diagnostics import Diagnostics

ALGORITHMS_OF = {
    "gemm": ("auto", "transposed", *GEMM_ALGORITHMS),
    "all_reduce": (
        "auto",
        "ring",
        *TREES,
        "folded",
        "k_tree",
        *(f"k_tree:{k}" for k in range(1, 5)),
    ),
    "dispatch": ("auto", *DISPATCHES),
}
CHOOSING = ("host", "cores")
_OF_LAYOUTS = ("mesh", "kv", "algo", "form", "align", "result")
"""Options that no pass of the graph level obeys."""


class MeshTarget(Target):
    """A target whose options are those of meshes, and whose passes end at the tile level."""

    OPTIONS = MeshOptions
    CHOOSES = False
    """Whether cores of a program may choose tokens."""

    def check(self, request: CompileRequest, found: Diagnostics) -> None:
        asked = request.options_of(MeshOptions)
        one_of(found, "--kv", asked.kv, (AUTO, *CACHE_POLICIES))
        one_of(found, "--align", asked.align, ("", *ALIGNMENTS))
        one_of(found, "--choose", asked.choose, CHOOSING)
        one_of(found, "--result", asked.result, ("", *RESULTS))
        ops = [text.partition("=")[0] for text in asked.algo]
        for text in asked.algo:
            _algorithm(found, text)
        for op in sorted({op for op in ops if ops.count(op) > 1}):
            words = f"--algo {op} is given twice, and one value would count"
            found.error("bad-argument", words)
        for text in asked.form:
            if not re.fullmatch(r"\w+=\w[\w-]*", text):
                found.error("bad-argument", f"--form cannot be '{text}'", help="it is RESULT=FORM")
        if asked.choose != "host" and not self.CHOOSES and not request.compile_to:
            words = f"the host of a program for --target {self.NAME} takes logits"
            found.error("bad-argument", f"--choose is {asked.choose}, but {words}")
        if request.serving and not self.SERVES:
            words = f"programs for --target {self.NAME} do not serve yet"
            found.error("bad-argument", f"--serving is {request.serving}, but {words}")
        if request.compile_to == "graph":
            _check_graph(request, found)
        if request.keep_quantised and (request.phase == "prefill" or request.chunk is not None):
            prompts = request.phase == "prefill"
            given = "--phase is prefill" if prompts else f"--chunk is {request.chunk}"
            words = "products of many tokens move weights from core to core"
            found.error(
                "bad-argument",
                f"{given}, but {words}, which --keep-quantised keeps where they are",
                help="leave it out: decode steps read prompts then",
            )

    def level(self, request: CompileRequest) -> Level:
        return next((level for level in STAGES if level == request.compile_to), "tile")

    def settings(self, request: CompileRequest) -> dict[str, str]:
        asked = request.options_of(MeshOptions)
        algorithms = dict(text.split("=", 1) for text in asked.algo)
        policy = "" if asked.kv == AUTO else asked.kv
        partition = {
            "grid": request.grid,
            "gemm": algorithms.get("gemm"),
            "align": asked.align,
            "result": asked.result,
            "kv": policy,
            "forms": _listed(asked.form),
        }
        kept = _listed(request.keep_quantised)
        regions: dict[str, str | int | None] = {"regions": request.regions, "kept": kept}
        return (
            algorithm_settings(**algorithms)
            | ({KEEPING: f"{KEEPING}{{formats={kept}}}"} if kept else {})
            | {
                "partition": spec("partition", partition),
                "split-regions": spec("split-regions", regions),
                "shift-kv-cache": spec("shift-kv-cache", {"policy": policy}),
            }
        )

    def passes(
        self, module: Module, request: CompileRequest, settings: dict[str, str]
    ) -> list[Pass]:
        return pipeline_from(module, self.level(request), settings)


def _listed(texts: Sequence[str]) -> str:
    """``texts`` as an option of a pass that is a list; empty for none."""
    quoted = ",".join(f'"{text}"' for text in texts)
    return f"[{quoted}]" if texts else ""


def _check_graph(request: CompileRequest, found: Diagnostics) -> None:
    """Refuse what says how a model lies on cores where nothing is laid out yet."""
    asked = {name: value for name, value in request.given if name in _OF_LAYOUTS}
    if request.keep_quantised:
        asked["keep_quantised"] = True
    for name, value in asked.items():
        words = "what is compiled to the graph level lies on no cores yet"
        found.error(
            "bad-argument",
            f"{flag_of(name)} is {told(value)}, but {words}",
            help="leave it out, or compile to the mesh level",
        )


def algorithm_settings(
    gemm: str = "auto", all_reduce: str = "auto", dispatch: str = "auto"
) -> dict[str, str]:
    """Specs of the passes behind partition for algorithms of products, reductions and dispatches,
    each one of ``ALGORITHMS_OF``; ``k_tree:2`` says the phases of a tree."""
    tree, _, phases = all_reduce.partition(":")
    specs = {
        "select-gemm": spec("select-gemm", {"algo": gemm}),
        "select-dispatch": spec("select-dispatch", {"algo": dispatch}),
        "select-collective": spec("select-collective", {"algo": tree, "k": phases}),
    }
    if gemm in NATURAL:
        specs["place-interleave"] = spec("place-interleave", {"axes": "none"})
    return specs


def _algorithm(found: Diagnostics, text: str) -> None:
    """Check one ``OP=NAME``; a tree may say its number of phases."""
    op, _, name = text.partition("=")
    if op not in ALGORITHMS_OF:
        found.error(
            "bad-argument",
            f"--algo cannot be '{text}'",
            help=f"it is OP=NAME, OP being {' or '.join(ALGORITHMS_OF)}",
        )
        return
    one_of(found, f"--algo {op}", name, ALGORITHMS_OF[op])
