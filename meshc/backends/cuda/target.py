"""The CUDA target."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from meshc.backends.cuda.chunk_launches import ChunkGraph
from meshc.backends.cuda.drafted import DraftedModel
from meshc.backends.cuda.emitted_lines import emitted_lines
from meshc.backends.cuda.gpu_divisions import CUTS, dealing
from meshc.backends.cuda.gpu_shares import TRANSPORTS
from meshc.backends.cuda.gpu_steps import MOST_LONG, GpuStep
from meshc.backends.cuda.halves import AUTO_OVERLAP, splitting_of
from meshc.backends.cuda.host import LanguageModel
from meshc.backends.cuda.kernels.collective.kernel import MOST_GPUS
from meshc.backends.cuda.mixed import MixedModel
from meshc.backends.cuda.paged import PagedModel
from meshc.backends.cuda.program import CHUNK_UNIT, MOST_CHUNK
from meshc.backends.cuda.tasks.caches import KV_LAYOUT, NHD
from meshc.backends.cuda.tasks.groups import LAYER_GROUPS, NODES
from meshc.backends.cuda.tasks.storage import CACHE_PAGES
from meshc.backends.host_protocols import Backend, Loading
from meshc.backends.hosts import on_gpu, opened_gpu
from meshc.backends.own_passes import with_own_passes
from meshc.backends.request import MOST_TOKENS, CompileRequest, one_of, within
from meshc.backends.target import Cure, OpLines, Target, Work, Written, check_read_by_chunks
from meshc.backends.target_options import NO_OVERLAP, CudaOptions
from meshc.cost.prompts import most_chunk
from meshc.devices import Device, device_names
from meshc.ir.batch import REQUEST
from meshc.ir.clone import clone_module
from meshc.ir.module import Level, Module, Scalar
from meshc.passes.base import Pass
from meshc.passes.manager import PassManager
from meshc.pipelines import (
    CODING,
    DEALING,
    STREAMING,
    chunking_passes,
    graph_passes,
    pipeline_to_kernels,
)
from meshc.support.diagnostics import Diagnostics, MeshcError, fail

PAGES = (1, 16, 64)
KV_LAYOUTS = (CudaOptions.kv_layout, NHD)
KV_DTYPES = (CudaOptions.kv_dtype, "fp8_e4m3")
DATAFLOWS = ("split_token", "split_head")
_MAX_CLUSTER = 16
MOST_NODES = 16


class CudaTarget(Target):
    """Kernels for Hopper GPUs and nodes of them."""

    NAME = "cuda"
    OPTIONS = CudaOptions
    USUAL_DEVICE = "h200"
    MOST_REQUESTS = 16
    OF_PROGRAMS = ("page", "collectives", "overlap", "cluster", "dataflow", "cut")
    ON_MESH = False
    BACKENDS = ("cuda-cpu", "cuda")
    SERVES = True
    SUFFIX = ".cu"
    ALONE = True
    PACKS = True

    def check(self, request: CompileRequest, found: Diagnostics) -> None:
        asked = request.options_of(CudaOptions)
        if request.compile_to not in ("", "graph"):
            words = "kernels are made of the graph level"
            found.error("bad-argument", f"--compile-to is {request.compile_to}, but {words}")
        one_of(found, "--dataflow", asked.dataflow, ("", *DATAFLOWS))
        within(found, "--cluster", asked.cluster, _MAX_CLUSTER)
        one_of(found, "--collectives", asked.collectives, tuple(TRANSPORTS))
        within(found, "--gpus", asked.gpus, MOST_GPUS)
        within(found, "--nodes", asked.nodes, MOST_NODES)
        if asked.nodes > 1:
            _check_nodes(found, request, asked)
        for flag, value in (("--cluster", asked.cluster), ("--dataflow", asked.dataflow)):
            if value and asked.gpus != 1:
                words = f"with --gpus {asked.gpus} the blocks of a step are no clusters"
                found.error("bad-argument", f"{flag} is {value}, but {words}")
        one_of(found, "--cut", asked.cut, CUTS)
        if asked.is_cut:
            _check_cut(found, asked)
        if asked.collectives != CudaOptions.collectives and asked.gpus == 1:
            words = "one GPU has none: --gpus says how many there are"
            found.error("bad-argument", f"--collectives is {asked.collectives}, but {words}")
        if asked.page not in PAGES:
            known = ", ".join(map(str, PAGES))
            found.error(
                "bad-argument", f"--page cannot be {asked.page}", help=f"it is one of {known}"
            )
        one_of(found, "--kv-layout", asked.kv_layout, KV_LAYOUTS)
        if asked.kv_layout == NHD:
            _check_layout(found, request, asked)
        one_of(found, "--kv-dtype", asked.kv_dtype, KV_DTYPES)
        if asked.codes_caches:
            _check_coded(found, request, asked)
        within(found, "--cache-tokens", asked.cache_tokens, MOST_TOKENS)
        if asked.cache_tokens is not None and not request.serving:
            words = "each request of a program that does not serve has its own pages"
            found.error("bad-argument", f"--cache-tokens is {asked.cache_tokens}, but {words}")
        if asked.drafts:
            _check_drafts(found, request, asked, self.MOST_REQUESTS)
        if asked.batch_tokens:
            _check_batch(found, request, asked)
        if request.serving and request.chunk is not None:
            words = "the kernels of many tokens that it asks for do not serve yet"
            found.error("bad-argument", f"--chunk is {request.chunk}, but {words}")
        if request.serving and asked.gpus != 1:
            words = "programs of several GPUs do not serve yet"
            found.error("bad-argument", f"--gpus is {asked.gpus}, but {words}")
        if request.chunk is not None:
            check_read_by_chunks(request, found)
            _check_chunk(found, request, asked, request.chunk)
        elif asked.overlap != NO_OVERLAP:
            words = "it is for --target cuda with --gpus and --chunk"
            found.error("bad-argument", f"--overlap is {asked.overlap}, but {words}")
        if request.keep_quantised:
            _check_kept(found, request, asked)

    def check_device(self, device: Device) -> None:
        if device.kind == "node":
            fail(
                "bad-argument",
                f"kernels are made for one GPU, and device {device.name} is a node of several",
                help=f"--device {_gpu_like(device)} --gpus {device.cores} makes one for as many",
            )

    def level(self, request: CompileRequest) -> Level:
        return "graph"

    def settings(self, request: CompileRequest) -> dict[str, str]:
        kept = ",".join(f'"{text}"' for text in request.keep_quantised)
        streamed = {STREAMING: f"{STREAMING}{{formats=[{kept}]}}"} if kept else {}
        coded = request.options_of(CudaOptions).codes_caches
        return streamed | ({CODING: f"{CODING}{{to=e4m3}}"} if coded else {})

    def phases(
        self, model: str, known: tuple[str, ...], request: CompileRequest
    ) -> tuple[str, ...]:
        """Kernels are made of decode steps; a prompt is read by them too."""
        if "decode" not in known:
            fail("bad-phase", f"'{model}' has no decode step to make CUDA kernels of")
        if request.phase == "prefill":
            words = "CUDA kernels are made of the decode step, which reads the prompt too"
            fail("bad-phase", words)
        return ("decode",)

    def made_for(self, device: Device) -> bool:
        return device.kind == "cluster"

    def graph_options(self, request: CompileRequest, seq: int) -> dict[str, Scalar]:
        """How pages of caches lie where that is not the usual order, and how many a program has
        that serves, one that no request has among them."""
        asked = request.options_of(CudaOptions)
        found: dict[str, Scalar] = {KV_LAYOUT: NHD} if asked.kv_layout == NHD else {}
        if asked.nodes > 1:
            found[NODES] = asked.nodes
        if not request.serving:
            return found
        whole, tokens = request.requests * -(-seq // asked.page), asked.cache_tokens
        return found | {CACHE_PAGES: 1 + (whole if tokens is None else -(-tokens // asked.page))}

    def drafts(self, request: CompileRequest) -> int:
        return request.options_of(CudaOptions).drafts

    def streams(self, request: CompileRequest) -> bool:
        return not request.compile_to

    def passes(
        self, module: Module, request: CompileRequest, settings: dict[str, str]
    ) -> list[Pass]:
        asked = request.options_of(CudaOptions)
        if asked.gpus > 1:
            settings = settings | {DEALING: dealing(module, asked.gpus, request.keep_quantised)}
        by_tasks = request.chunk is None or asked.codes_caches
        return graph_passes(settings) if by_tasks else pipeline_to_kernels(settings)

    def write(self, work: Work) -> Written:
        """A decode step for GPUs, and what reads its prompts, which no trial needs: where there is
        no room for it, steps do."""
        asked, step_graph = work.request, clone_module(work.given["decode"])

        def kernels(tokens: int, least: int) -> ChunkGraph:
            if asked.chunk is None:
                passes = with_own_passes(asked, pipeline_to_kernels(asked.settings()))
                fused = PassManager(passes).run(clone_module(step_graph))
                return ChunkGraph(fused, tokens, None, least)
            splitting = splitting_of(asked, work.given["decode"], work.report)
            return ChunkGraph(work.lowered("decode"), tokens, splitting, least)

        def prompts(tokens: int) -> Module | None:
            """A chunk of a prompt of one request, whose pages the host says."""
            module = None if work.trial else work.graph("prefill")
            if module is None:
                return None
            module.scalars.pop(REQUEST, None)
            if asked.serving.startswith("layers"):
                module.options[LAYER_GROUPS] = True
            return PassManager(chunking_passes(1, tokens)).run(module, Diagnostics())

        how = work.report, work.instruments, work.verified, work.trial
        step = GpuStep(asked, work.model, step_graph, prompts, kernels, *how)
        with _quoting_missed(work.report):
            module, files = step.files()
        return Written({"decode": module}, files, step.tasks_of_prompts)

    @contextmanager
    def opened(self, name: str) -> Iterator[Backend]:
        with opened_gpu(name) as backend:
            yield backend

    def load(self, loading: Loading) -> LanguageModel:
        given = on_gpu(loading)
        return DraftedModel(*given) if given[0].columns > 1 else LanguageModel(*given)

    def load_engine(self, loading: Loading) -> PagedModel:
        given = on_gpu(loading)
        return MixedModel(*given) if given[0].mixes else PagedModel(*given)

    def lines_of(self, request: CompileRequest, module: Module, text: str) -> OpLines:
        return emitted_lines(module, text)

    def stem(self, phase: str) -> str:
        return {"decode": "step"}.get(phase, phase)

    def cures(self, request: CompileRequest) -> Iterator[Cure]:
        """Smaller clusters of blocks where these were asked for, else more GPUs."""
        asked = request.options_of(CudaOptions)
        if asked.cluster is not None or asked.dataflow:
            for blocks in (8, 4, 2):
                if blocks < (asked.cluster or 0):
                    yield f"--cluster {blocks}", request.changed(cluster=blocks)
            given = {"--cluster": asked.cluster, "--dataflow": asked.dataflow}
            flags = " and ".join(flag for flag, value in given.items() if value)
            yield f"leaving out {flags}", request.changed(cluster=None, dataflow="")
            return
        for count in (2, 4, 8, 16):
            if asked.gpus < count <= MOST_GPUS:
                yield f"--gpus {count}", request.changed(gpus=count)


def _check_layout(found: Diagnostics, request: CompileRequest, asked: CudaOptions) -> None:
    """Tasks of one GPU, whose blocks are no clusters, read pages of others."""
    words = f"--kv-layout is {asked.kv_layout}, but"
    if asked.gpus != 1:
        found.error("bad-argument", f"{words} programs of several GPUs have pages of their own")
    others = {"--cluster": asked.cluster, "--dataflow": asked.dataflow}
    if not request.serving:
        others["--chunk"] = request.chunk
    for flag, value in others.items():
        if value:
            found.error("bad-argument", f"{words} kernels of {flag} {value} have their own")


def _check_cut(found: Diagnostics, asked: CudaOptions) -> None:
    """Blocks of one GPU, which are no clusters, meet between kernels."""
    others = {
        "--gpus": asked.gpus if asked.gpus != 1 else None,
        "--nodes": asked.nodes if asked.nodes != 1 else None,
        "--cluster": asked.cluster,
        "--dataflow": asked.dataflow,
    }
    for flag, value in others.items():
        if value:
            words = f"steps with {flag} {value} are one kernel"
            found.error("bad-argument", f"--cut is {asked.cut}, but {words}")
    if asked.persistent:
        words = f"--persistent asks for a step of one kernel, and --cut {asked.cut} for several"
        found.error("bad-argument", words, help="leave one of them out")


def _check_coded(found: Diagnostics, request: CompileRequest, asked: CudaOptions) -> None:
    """Kernels of tasks, whose blocks have whole heads, alone read and write such caches."""
    words = f"--kv-dtype is {asked.kv_dtype}, but"
    if asked.dataflow == "split_head":
        more = "blocks of --dataflow split_head have parts of the rows that have one scale"
        found.error("bad-argument", f"{words} {more}")
    if asked.overlap != NO_OVERLAP or (request.chunk or 0) > MOST_LONG:
        flag = f"--overlap {asked.overlap}" if request.chunk is None else f"--chunk {request.chunk}"
        more = f"kernels of {flag} keep caches of 16 bits"
        found.error("bad-argument", f"{words} {more}", help=f"--chunk {MOST_LONG}, or less")


def _check_nodes(found: Diagnostics, request: CompileRequest, asked: CudaOptions) -> None:
    """Layers of steps and of prompts by tasks are dealt, those of one GPU of each node."""
    others: dict[str, object] = {
        "--gpus": asked.gpus if asked.gpus != 1 else None,
        "--cluster": asked.cluster,
        "--dataflow": asked.dataflow,
        "--chunk": request.chunk,
        "--serving": request.serving,
        "--drafts": asked.drafts,
        "--keep-quantised": ",".join(request.keep_quantised),
    }
    for flag, value in others.items():
        if value:
            words = f"--nodes is {asked.nodes}, but layers of programs with {flag} {value}"
            found.error("bad-argument", f"{words} are dealt to no nodes yet")


def _check_drafts(
    found: Diagnostics, request: CompileRequest, asked: CudaOptions, tokens: int
) -> None:
    """Steps of one GPU, which read so many ``tokens``, verify drafts, those whose blocks are no
    clusters."""
    words = f"--drafts is {asked.drafts}"
    most = tokens // request.requests - 1
    if not 1 <= asked.drafts <= most:
        room = f"{most} with --batch {request.requests}" if most > 0 else "fewer requests"
        found.error(
            "bad-argument",
            f"{words}, and a step reads {tokens} tokens of all requests at the most: 1 to {room}",
            help="a request has one token and its drafts in a step",
        )
    if asked.gpus != 1:
        found.error("bad-argument", f"{words}, but steps of several GPUs verify none")
    for flag, value in (("--cluster", asked.cluster), ("--dataflow", asked.dataflow)):
        if value:
            found.error("bad-argument", f"{words}, but steps with {flag} {value} verify none")


def _check_batch(found: Diagnostics, request: CompileRequest, asked: CudaOptions) -> None:
    """Steps of one GPU that serve, in which blocks are no clusters, read tokens of any requests: of
    each at least the next one."""
    words = f"--batch-tokens is {asked.batch_tokens}, but"
    least = max(2, request.requests)
    if not least <= asked.batch_tokens <= MOST_LONG:
        more = f"a step of {request.requests} requests reads {least} to {MOST_LONG} tokens"
        found.error("bad-argument", f"{words} {more}")
    if not request.serving:
        found.error("bad-argument", f"{words} programs that serve alone mix tokens of requests")
    elif request.serving != "chunks":
        more = f"prompts of --serving {request.serving} pass some layers at a time"
        found.error("bad-argument", f"{words} {more}")
    others: dict[str, object] = {
        "--gpus": asked.gpus if asked.gpus != 1 else None,
        "--cluster": asked.cluster,
        "--dataflow": asked.dataflow,
        "--drafts": asked.drafts,
    }
    for flag, value in others.items():
        if value:
            found.error("bad-argument", f"{words} steps with {flag} {value} mix no tokens")


def _gpu_like(node: Device) -> str:
    """A GPU as those of ``node`` or, where kernels are made for none of these, another one."""
    names = [name for name in device_names() if node.name.startswith(f"{name}x")]
    return names[0] if names else "h100"


def _check_kept(found: Diagnostics, request: CompileRequest, asked: CudaOptions) -> None:
    """Kernels of tasks alone decode weights."""
    if request.compile_to:
        words = "weights are streamed by kernels, which are no graph"
        found.error("bad-argument", f"--keep-quantised is given, but {words}")
    if request.chunk is not None:
        words = f"--chunk is {request.chunk}, and kernels of many tokens read decoded weights"
        found.error("bad-argument", f"--keep-quantised is given, but {words}")


def _check_chunk(
    found: Diagnostics, request: CompileRequest, asked: CudaOptions, chunk: int
) -> None:
    """Kernels of many tokens take whole eights of them."""
    halves = 1 if asked.overlap == NO_OVERLAP else 2
    most = halves * MOST_CHUNK
    if asked.gpus == 1 and halves == 1:
        most = most_chunk(request.the_device())
    if chunk % CHUNK_UNIT or not CHUNK_UNIT <= chunk <= most:
        words = f"a multiple of {CHUNK_UNIT} up to {most}"
        more = f"; with --overlap up to {2 * MOST_CHUNK}" if asked.gpus > 1 and halves == 1 else ""
        found.error("bad-argument", f"--chunk is {chunk}, for --target cuda not {words}{more}")
    if halves == 1:
        return
    if asked.gpus == 1:
        words = "one GPU has no collectives to hide"
        found.error("bad-argument", f"--overlap is {asked.overlap}, but {words}")
    if asked.overlap != AUTO_OVERLAP:
        at = int(asked.overlap) if asked.overlap.isdecimal() else 0
        if not 1 <= at < chunk or at > MOST_CHUNK:
            words = f"none, auto or 1 to {min(chunk - 1, MOST_CHUNK)} tokens"
            found.error("bad-argument", f"--overlap is {asked.overlap}, not {words}")


@contextmanager
def _quoting_missed(report: Diagnostics) -> Iterator[None]:
    """Let the refusal of an op that no kernel holds say why ``fuse-chunk`` left it."""
    try:
        yield
    except MeshcError as error:
        missed = [m for m in report.messages if (m.severity, m.code) == ("missed", "fuse-chunk")]
        notes = tuple(f"{m.message} ({m.span})" if m.span else m.message for m in missed)
        raise MeshcError(
            replace(d, notes=d.notes + notes) if d.code == "cuda-graph" else d
            for d in error.diagnostics
        ) from error


TARGET = CudaTarget()
