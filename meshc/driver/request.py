"""What a compile is asked to do: a value, so that a compile is a function of its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from meshc.backends.cuda.kernels.collective.kernel import MOST_GPUS
from meshc.backends.cuda.program import CHUNK_UNIT, MOST_CHUNK, TRANSPORTS
from meshc.cost.dispatching import WAYS as DISPATCHES
from meshc.cost.products import ALGORITHMS as GEMM_ALGORITHMS
from meshc.cost.reductions import TREES
from meshc.devices import Device, device
from meshc.ir.module import Level
from meshc.ir.ops.mesh import ALIGNMENTS, CACHE_POLICIES, RESULTS
from meshc.ir.types import DType
from meshc.passes.mesh.forms.problem import AUTO
from meshc.passes.mesh.select_gemm import NATURAL
from meshc.pipelines import KEEPING, STAGES, STREAMING
from meshc.support.diagnostics import Diagnostics, fail

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
TARGETS = ("python", "csl", "cuda")
NO_OVERLAP, AUTO_OVERLAP = "none", "auto"
PAGES = (1, 16, 64)
USUAL_DEVICE = {"cuda": "h200", "csl": "wse3"}
USUAL_MESH = "8x8"
PHASES = ("prefill", "decode", "both")
HOLDING = ("auto", "one", "copied", "moved", "two")
CHOOSING = ("host", "cores")
DATAFLOWS = ("split_token", "split_head")
SERVING = ("chunks", "layers", "layers!")
DEFAULT_SEQ = 1024
MOST_TOKENS = 1 << 24
_MAX_CLUSTER = 16
MOST_REQUESTS = {"python": 256, "cuda": 16, "csl": 64}
_MAX_LAYERS = 1 << 10

_MESHES, _KERNELS, _WAFERS = ("python", "csl"), ("cuda",), ("csl",)
_TARGETS_OF = {
    **dict.fromkeys(("mesh", "kv", "algo", "align", "result"), _MESHES),
    **dict.fromkeys(("cluster", "dataflow", "page", "collectives", "cache_tokens"), _KERNELS),
    "portable": _WAFERS,
}
"""The targets whose programs obey a field that not all do; other fields say it in their checks."""
IR_FORMATS = ("meshir", "mlir")
"""What IR is written in: text of its own, or MLIR's generic form."""
_OF_PROGRAMS = ("portable", "phases", "page", "collectives", "overlap", "cluster", "dataflow")
"""Fields that no pass obeys, only what writes the files of a program."""


@dataclass(frozen=True)
class CompileRequest:
    """Options of a compile. Empty texts and None stand for the defaults.

    ``device`` is a name, the path of a file, or a device itself.
    ``mesh`` is columns x rows of one region, or its axes by name, that of regions included, such as
    ``r=2,y=4,x=4``. ``seq`` is the KV capacity in tokens. ``dtype`` is
    that of activations and weights on the cores. ``kv`` is the policy of the KV cache, ``auto`` by
    predicted cycles of the decode step.
    ``target`` is ignored when ``compile_to`` names a level to stop at, whose IR is written in the
    format ``emit``. ``portable`` CSL runs on
    every architecture that has CSL. ``algo`` names algorithms, such as ``gemm=cannon`` and
    ``all_reduce=k_tree:2``; ``align`` says who skews operands of products, the host or the cores;
    ``result`` ``roots`` leaves reduced results of main on the first cores of their axis. ``choose``
    says who takes the largest logit of a decode step, the ``host`` or the ``cores``, which then
    give its token instead of all logits; that is for CSL. ``batch``
    is the requests of a step. ``serving`` is how a program serves requests as they come: ``chunks``
    of prompts, also by ``layers`` in groups, or by those of a dense model too (``layers!``); empty
    for one that reads prompts whole. ``chunk`` is, for CSL and for a program that serves, the most
    tokens of a prompt that one run reads behind those that are cached; None for as many as the
    caches hold. For CUDA it is the tokens that kernels of many read at once, each weight once; None
    for the most by kernels where many are left, and few by tasks. ``phases`` says whether both
    phases of CSL are one program (:mod:`meshc.driver.one_program`). For CUDA ``cluster`` is the
    blocks of a cluster, ``dataflow`` how they share attention, by as many as are predicted to be
    fastest if ``cluster`` is empty, in no clusters if both are; ``page`` is the tokens of a page of
    the cache; ``gpus`` are those that a model is dealt to, whose ``collectives`` add up in the
    switch (``multimem``) or by loads from each peer (``peers``); ``overlap`` says which chunks they
    read in two halves beside each other: ``none``, those that the cost of a node is lower for
    (``auto``), or all with that many tokens in the first half; ``persistent`` asks for a decode
    step of one kernel, which it always is.
    ``cache_tokens`` is, for CUDA that serves, how many tokens the pages of all requests together
    have room for; None for all that ``seq`` gives each.
    ``keep_quantised`` are weights that stay quantised in the memory of cores, each with its format,
    as the pass keep-quantised takes them.
    """

    target: str = "python"
    device: str | Device = ""
    mesh: str = ""
    phase: str = "both"
    seq: int | None = None
    layers: int | None = None
    dtype: str = ""
    kv: str = AUTO
    compile_to: str = ""
    emit: str = IR_FORMATS[0]
    portable: bool = False
    algo: tuple[str, ...] = ()
    align: str = ""
    result: str = ""
    choose: str = "host"
    cluster: int | None = None
    dataflow: str = ""
    page: int = 16
    gpus: int = 1
    collectives: str = "multimem"
    overlap: str = NO_OVERLAP
    persistent: bool = False
    batch: int | None = None
    serving: str = ""
    chunk: int | None = None
    phases: str = "two"
    keep_quantised: tuple[str, ...] = ()
    cache_tokens: int | None = None

    @property
    def device_name(self) -> str:
        """What the device is called, the target's usual one when none is asked for."""
        if isinstance(self.device, Device):
            return self.device.name
        return self.device or USUAL_DEVICE.get(self.target, "ideal")

    def the_device(self) -> Device:
        """The device. Raises what :func:`meshc.devices.device` does."""
        return self.device if isinstance(self.device, Device) else device(self.device_name)

    @property
    def mesh_name(self) -> str:
        """The mesh, the usual one when none is asked for."""
        return self.mesh or USUAL_MESH

    @property
    def requests(self) -> int:
        """The requests of a step."""
        return self.batch or 1

    @property
    def in_switch(self) -> bool:
        """Whether collectives add up in the switch."""
        return self.collectives == "multimem"

    def cache_pages(self, seq: int) -> int | None:
        """Pages of the caches of a program for CUDA that serves requests of up to ``seq`` tokens,
        one that no request has among them; None where each request has its own."""
        if not self.serving or self.target != "cuda":
            return None
        whole = self.requests * -(-seq // self.page)
        tokens = self.cache_tokens
        return 1 + (whole if tokens is None else -(-tokens // self.page))

    def level(self) -> Level:
        """The level at which the passes end."""
        if self.target == "cuda":
            return "graph"
        return next((level for level in STAGES if level == self.compile_to), "tile")

    @property
    def kernels(self) -> bool:
        """Whether kernels for CUDA are asked for."""
        return self.target == "cuda" and not self.compile_to

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
    def joined(self) -> bool:
        """Whether one program for both phases is asked for, whose steps take one request."""
        return self.phases not in ("auto", "two")

    def settings(self) -> dict[str, str]:
        """Specs of passes that differ from their defaults."""
        algorithms = dict(text.split("=", 1) for text in self.algo)
        specs = algorithm_settings(**algorithms)
        policy = "" if self.kv == AUTO else self.kv
        partition = {
            "grid": self.grid,
            "gemm": algorithms.get("gemm"),
            "align": self.align,
            "result": self.result,
            "kv": policy,
        }
        kept = ",".join(f'"{text}"' for text in self.keep_quantised)
        regions: dict[str, str | int | None] = {
            "regions": self.regions,
            "kept": f"[{kept}]" if kept else "",
        }
        step = STREAMING if self.kernels else KEEPING
        keeping = {step: f"{step}{{formats=[{kept}]}}"} if kept else {}
        return (
            specs
            | keeping
            | {
                "partition": spec("partition", partition),
                "split-regions": spec("split-regions", regions),
                "shift-kv-cache": spec("shift-kv-cache", {"policy": policy}),
            }
        )

    def check(self) -> None:
        """Raise every ``bad-option`` and ``bad-mesh`` at once."""
        found = Diagnostics()
        _one_of(found, "--target", self.target, TARGETS)
        _one_of(found, "--phase", self.phase, PHASES)
        _one_of(found, "--phases", self.phases, HOLDING)
        _one_of(found, "--kv", self.kv, (AUTO, *CACHE_POLICIES))
        _one_of(found, "--dtype", self.dtype, ("", *(d.value for d in DType if d.floats)))
        _one_of(found, "--compile-to", self.compile_to, ("", *STAGES))
        _one_of(found, "--emit", self.emit, IR_FORMATS)
        if self.emit != IR_FORMATS[0] and not self.compile_to:
            words = "programs are written in the language of their target"
            found.error(
                "bad-argument",
                f"--emit is {self.emit}, but {words}",
                help="--compile-to names the level whose IR is written",
            )
        _one_of(found, "--align", self.align, ("", *ALIGNMENTS))
        _one_of(found, "--choose", self.choose, CHOOSING)
        _one_of(found, "--result", self.result, ("", *RESULTS))
        _one_of(found, "--dataflow", self.dataflow, ("", *DATAFLOWS))
        _one_of(found, "--serving", self.serving, ("", *SERVING))
        ops = [text.partition("=")[0] for text in self.algo]
        for text in self.algo:
            _algorithm(found, text)
        for op in sorted({op for op in ops if ops.count(op) > 1}):
            words = f"--algo {op} is given twice, and one value would count"
            found.error("bad-argument", words)
        self._check_obeyed(found)
        _within(found, "--cluster", self.cluster, _MAX_CLUSTER)
        _one_of(found, "--collectives", self.collectives, tuple(TRANSPORTS))
        _within(found, "--gpus", self.gpus, MOST_GPUS)
        if self.gpus != 1 and self.target != "cuda":
            found.error(
                "bad-argument",
                f"--gpus is {self.gpus}, but programs for --target {self.target} are of one",
                help="--device h100x8 --mesh gpu=8 deals a model by layouts, for --target python",
            )
        if self.persistent and self.target != "cuda":
            words = f"it is for --target cuda, not {self.target}"
            found.error("bad-argument", f"--persistent is given, but {words}")
        for flag, value in (("--cluster", self.cluster), ("--dataflow", self.dataflow)):
            if value and self.gpus != 1 and self.target == "cuda":
                words = f"with --gpus {self.gpus} the blocks of a step are no clusters"
                found.error("bad-argument", f"{flag} is {value}, but {words}")
        if self.page not in PAGES:
            known = ", ".join(map(str, PAGES))
            found.error(
                "bad-argument", f"--page cannot be {self.page}", help=f"it is one of {known}"
            )
        _within(found, "--batch", self.batch, MOST_REQUESTS.get(self.target, 1))
        _within(found, "--seq", self.seq, MOST_TOKENS)
        _within(found, "--chunk", self.chunk, MOST_TOKENS)
        _within(found, "--cache-tokens", self.cache_tokens, MOST_TOKENS)
        if self.cache_tokens is not None and not self.serving:
            words = "each request of a program that does not serve has its own pages"
            found.error("bad-argument", f"--cache-tokens is {self.cache_tokens}, but {words}")
        if self.serving and self.target == "csl":
            words = "programs for --target csl do not serve yet"
            found.error("bad-argument", f"--serving is {self.serving}, but {words}")
        if self.serving and self.target == "cuda" and self.chunk is not None:
            words = "the kernels of many tokens that it asks for do not serve yet"
            found.error("bad-argument", f"--chunk is {self.chunk}, but {words}")
        if self.serving and self.target == "cuda" and self.gpus != 1:
            words = "programs of several GPUs do not serve yet"
            found.error("bad-argument", f"--gpus is {self.gpus}, but {words}")
        if self.chunk is not None and self.target == "cuda":
            self._check_cuda_chunk(found, self.chunk)
        elif self.overlap != NO_OVERLAP:
            words = "it is for --target cuda with --gpus and --chunk"
            found.error("bad-argument", f"--overlap is {self.overlap}, but {words}")
        elif self.chunk is not None and self.target != "csl" and not self.serving:
            words = f"programs for --target {self.target} do not take it"
            found.error("bad-argument", f"--chunk is {self.chunk}, but {words}")
        if self.phases != "two" and self.target != "csl":
            words = f"programs for --target {self.target} have their own for each phase"
            found.error("bad-argument", f"--phases is {self.phases}, but {words}")
        if self.choose != "host" and self.target != "csl" and not self.compile_to:
            words = f"the host of a program for --target {self.target} takes logits"
            found.error("bad-argument", f"--choose is {self.choose}, but {words}")
        if self.keep_quantised and self.kernels:
            self._check_cuda_kept(found)
        elif self.keep_quantised and (self.phase == "prefill" or self.chunk is not None):
            given = "--phase is prefill" if self.phase == "prefill" else f"--chunk is {self.chunk}"
            words = "products of many tokens move weights from core to core"
            found.error(
                "bad-argument",
                f"{given}, but {words}, which --keep-quantised keeps where they are",
                help="leave it out: decode steps read prompts then",
            )
        _within(found, "--layers", self.layers, _MAX_LAYERS)
        found.raise_errors()
        numbers = self.the_device()
        numbers.axes.sizes_of(self.mesh_name)
        if self.target == "cuda" and numbers.kind == "node":
            fail(
                "bad-argument",
                f"kernels are made for one GPU, and device {numbers.name} is a node of several",
                help="--device h100 --gpus 8 makes a program of eight GPUs",
            )

    def asked(self) -> dict[str, object]:
        """The fields that differ from their defaults."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    def _check_obeyed(self, found: Diagnostics) -> None:
        """Refuse what nothing on the way to this target, or to the level to stop at, obeys."""
        for name, value in self.asked().items():
            targets = _TARGETS_OF.get(name, TARGETS)
            words = f"{flag_of(name)} is {told(value)}"
            if self.target not in targets and self.target in TARGETS:
                others = f"programs for --target {self.target} do not take it"
                found.error("bad-argument", f"{words}, but {others}")
            elif self.compile_to and name in _OF_PROGRAMS:
                level = f"what is compiled to the {self.compile_to} level is no program yet"
                found.error("bad-argument", f"{words}, but {level}", help="leave out --compile-to")
        if self.target == "cuda" and self.compile_to not in ("", "graph"):
            words = "kernels are made of the graph level"
            found.error("bad-argument", f"--compile-to is {self.compile_to}, but {words}")

    def _check_cuda_kept(self, found: Diagnostics) -> None:
        """Kernels of tasks alone decode weights, those of one GPU."""
        others = []
        if self.chunk is not None:
            others.append(f"--chunk is {self.chunk}, and kernels of many tokens read")
        if self.gpus != 1:
            others.append(f"--gpus is {self.gpus}, and programs of several GPUs read")
        for words in others:
            why = f"but {words} decoded weights"
            found.error("bad-argument", f"--keep-quantised is given, {why}")

    def _check_cuda_chunk(self, found: Diagnostics, chunk: int) -> None:
        """Kernels of many tokens take whole eights of them."""
        halves = 1 if self.overlap == NO_OVERLAP else 2
        if chunk % CHUNK_UNIT or not CHUNK_UNIT <= chunk <= halves * MOST_CHUNK:
            words = f"a multiple of {CHUNK_UNIT} up to {halves * MOST_CHUNK}"
            more = f"; with --overlap up to {2 * MOST_CHUNK}" if halves == 1 else ""
            found.error("bad-argument", f"--chunk is {chunk}, for --target cuda not {words}{more}")
        if halves == 1:
            return
        if self.gpus == 1:
            words = "one GPU has no collectives to hide"
            found.error("bad-argument", f"--overlap is {self.overlap}, but {words}")
        if self.overlap != AUTO_OVERLAP:
            at = int(self.overlap) if self.overlap.isdecimal() else 0
            if not 1 <= at < chunk or at > MOST_CHUNK:
                words = f"none, auto or 1 to {min(chunk - 1, MOST_CHUNK)} tokens"
                found.error("bad-argument", f"--overlap is {self.overlap}, not {words}")


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
    _one_of(found, f"--algo {op}", name, ALGORITHMS_OF[op])


def _one_of(found: Diagnostics, option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        choices = ", ".join(k for k in known if k)
        found.error("bad-argument", f"{option} cannot be '{value}'", help=f"it is one of {choices}")


def _within(found: Diagnostics, option: str, value: int | None, most: int) -> None:
    if value is not None and not 1 <= value <= most:
        found.error("bad-argument", f"{option} is {value}, not 1 to {most}")
