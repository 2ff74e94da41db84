"""fuse-all-reduce: what fused sums mean, that drawn graphs of ranks compute the same, which sums
are fused and which stay, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshc
from meshc.driver import CompileRequest, graph_module, load_any
from meshc.interp.check import check_same
from meshc.interp.graph import run_graph
from meshc.interp.together import run_ranks
from meshc.ir.clone import clone_module
from meshc.ir.module import Module
from meshc.ir.ops import graph, ranks

MODEL = Path(__file__).parents[2] / "examples" / "tiny_llama.mesh"

HEADER = """module @drawn level(graph) {{
  dims B = {rows}, E = {width}, F = {features}, F_rank = {own}, N = {layers}
  ranks count = {count}
  part dim = F_rank, whole = F
  func @main(in %x0: f32[B, E], in %y: f32[B, E], {weights}) -> ({types}) {{
{body}
    graph.return {results}
  }}
}}
"""
FAULTS = ("returned", "two norms", "sum read twice", "bias", "scaled")


class Writer:
    """Writes a chain of pieces, blocks and loops of two blocks, each of which normalises the
    residual and adds a sum over ranks to it. The residual behind one with a fault is used otherwise
    too, or is made otherwise."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.weights = ["weight %b: f32[E]", "weight %up: f32[E, F_rank]"]
        self.weights += ["weight %down: f32[F_rank, E]", "weight %g: f32[E]"]
        self.weights += ["weight %ups: f32[N, E, F_rank]", "weight %downs: f32[N, F_rank, E]"]
        self.weights += ["weight %gs: f32[N, E]"]
        self.results: list[str] = []
        self.count = 0

    def line(self, words: str, kind: str = "f32[B, E]", indent: int = 4) -> str:
        self.count += 1
        self.lines.append(f"{' ' * indent}%v{self.count} = graph.{words} : {kind}")
        return f"%v{self.count}"

    def part(self, h: str, up: str = "%up", down: str = "%down", indent: int = 4) -> str:
        """A rank's part of a sum, made of what is normalised."""
        z = self.line(f"matmul {h}, {up} {{contract = [E]}}", "f32[B, F_rank]", indent)
        a = self.line(f"silu {z}", "f32[B, F_rank]", indent)
        return self.line(f"matmul {a}, {down} {{contract = [F_rank]}}", indent=indent)

    def block(self, x: str, fault: str, turned: bool) -> str:
        h = self.line(f"rms_norm {x}, %g {{dim = E, eps = 0.01}}")
        s = self.line(f"all_reduce {self.part(h)}")
        if fault == "bias":
            s = self.line(f"add {s}, %b")
        x = self.line(f"add {s}, {x}" if turned else f"add {x}, {s}")
        if fault in ("returned", "sum read twice"):
            self.results.append(x if fault == "returned" else s)
        elif fault in ("two norms", "scaled"):
            norm = "rms_norm {}, %b {{dim = E}}"
            words = norm if fault == "two norms" else "scale {} {{factor = 0.5}}"
            self.results.append(self.line(words.format(x)))
        return x

    def loop(self, x: str, fault: bool, turned: bool) -> str:
        self.count += 1
        i = self.count
        self.lines.append(
            f"    %v{i} = graph.repeat {x}, %ups, %downs, %gs {{dim = N}} : f32[B, E] "
            f"(%a{i}: f32[B, E], %u{i}: f32[E, F_rank], %d{i}: f32[F_rank, E], %g{i}: f32[E]) {{"
        )
        inner = f"%a{i}"
        for _ in range(2):
            given = self.line(f"scale {inner} {{factor = 0.5}}", indent=6) if fault else inner
            h = self.line(f"rms_norm {given}, %g{i} {{dim = E}}", indent=6)
            s = self.line(f"all_reduce {self.part(h, f'%u{i}', f'%d{i}', 6)}", indent=6)
            words = f"add {s}, {inner}" if turned else f"add {inner}, {s}"
            inner = self.line(words, indent=6)
        self.lines += [f"      graph.yield {inner}", "    }"]
        return f"%v{i}"

    def module(self, x: str, count: int, rows: int, width: int, features: int) -> Module:
        results = [*self.results, self.line(f"rms_norm {x}, %g {{dim = E}}")]
        text = HEADER.format(
            rows=rows, width=width, features=features, own=-(-features // count), count=count,
            layers=2, weights=", ".join(self.weights), body="\n".join(self.lines),
            types=", ".join(["f32[B, E]"] * len(results)), results=", ".join(results),
        )  # fmt: skip
        return meshc.parse(text, "drawn.meshir")


def fused_of(pieces: list[tuple[str, str]]) -> int:
    """How many norms of a chain are fused: from the end, up to the first fault, all residuals can
    stay in parts. A block hands its sum to a loop behind it, and a loop has one norm at its start,
    one within, and the norm behind it unless there is another loop."""
    found, behind = 0, ""
    for kind, fault in reversed(pieces):
        if fault:
            break
        found += 2 * (kind == "loop") + (behind != "loop")
        behind = kind
    return found


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Module, int]:
    """A graph of 1 to 9 ranks, and how many of its norms are fused."""
    writer, x = Writer(), "%x0"
    pieces = []
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["block", "block", "loop"]))
        fault = draw(st.sampled_from(["", "", "", *FAULTS]))
        pieces.append((kind, fault))
        turned = draw(st.booleans())
        made = writer.loop(x, bool(fault), turned) if kind == "loop" else None
        x = made or writer.block(x, fault, turned)
    sizes = [draw(st.integers(1, most)) for most in (9, 5, 9, 20)]
    return writer.module(x, *sizes), fused_of(pieces)


def fused(module: Module, text: str = "fuse-all-reduce{multiprocessors=8}") -> Module:
    """What the pass makes of it, by way of its text."""
    made = meshc.PassManager(meshc.parse_pipeline(text)).run(clone_module(module))
    assert meshc.print_module(meshc.parse(meshc.print_module(made))) == meshc.print_module(made)
    return meshc.parse(meshc.print_module(made), "fused.meshir")


def count(module: Module) -> int:
    return sum(isinstance(op, ranks.AllReduceResidualRmsNorm) for op in module.walk())


def drawn_inputs(module: Module, seed: int) -> dict[str, np.ndarray]:
    """Arrays of the whole model."""
    draw = np.random.default_rng(seed).standard_normal
    assert module.ranks is not None
    wholes = {part.dim: part.whole for part in module.ranks.parts}
    return {
        p.value.name: draw([module.dims[wholes.get(d, d)] for d in p.value.type.dims])
        for p in module.function.params
    }


@settings(max_examples=40, deadline=None)
@given(graphs(), st.integers(0, 99))
def test_fused_sums_compute_what_was_there(drawn: tuple[Module, int], seed: int) -> None:
    module, wanted = drawn
    after = fused(module)
    assert count(after) == wanted
    if not wanted:
        assert meshc.print_module(after) == meshc.print_module(
            meshc.parse(meshc.print_module(module))
        )
    given = drawn_inputs(module, seed)
    for own, other in zip(run_ranks(module, given), run_ranks(after, given), strict=True):
        for old, new in zip(own, other, strict=True):
            assert np.abs(old - new).max() <= 1e-12 * max(1.0, np.abs(old).max())


TEXT = """module @m level(graph) {
  dims B = 5, E = 6, F = 6, F_rank = 2
  ranks count = 3
  part dim = F_rank, whole = F
  func @main(in %p: f32[B, F_rank], in %x: f32[B, F_rank], weight %g: f32[B]) -> (RESULTS) {
    %z = graph.zeros_like %x : f32[B, F_rank]
    %h, %y = graph.all_reduce_residual_rms_norm %p, %x, %g {dim = B, eps = 0.25} : RESULTS
    graph.return %h, %z
  }
}
""".replace("RESULTS", "f32[B, F_rank], f32[B, F_rank]")


def test_the_op_means_a_sum_a_residual_and_a_norm() -> None:
    """Over a dim that is not the last one, of parts and residuals that differ from rank to rank."""
    random = np.random.default_rng(1)
    p, x, g = (random.standard_normal(size) for size in ((5, 6), (5, 6), 5))
    found = run_ranks(meshc.parse(TEXT, "m.meshir"), {"p": p, "x": x, "g": g})
    whole = p[:, 0:2] + p[:, 2:4] + p[:, 4:6]
    for rank, (normed, zeros) in enumerate(found):
        stream = whole + x[:, 2 * rank : 2 * rank + 2]
        scale = np.sqrt((stream**2).mean(0) + 0.25)
        np.testing.assert_allclose(normed, stream / scale * g[:, None], rtol=1e-12)
        assert zeros.shape == (5, 2) and not zeros.any()


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("dim = B,", "dim = E,", "'E' is no dim of the residual"),
        ("dim = B,", "dim = F_rank,", "the gain is of f32 over F_rank alone"),
        ("in %p: f32[B, F_rank]", "in %p: f32[B, F]", "must have the same type"),
        ("in %p: f32[B, F_rank]", "in %p: f16[B, F_rank]", "must have the same type"),
        ("weight %g: f32[B]", "weight %g: f16[B]", "the gain is of f32 over B alone"),
        ("eps = 0.25", "eps = -1.0", "it is at least 0"),
        ("eps = 0.25", "eps = 0.25, multiprocessors = 0", "it is at least 1"),
        ("  ranks count = 3\n  part dim = F_rank, whole = F\n", "", "the header says no ranks"),
    ],
)
def test_what_is_no_fused_sum_is_refused(old: str, new: str, words: str) -> None:
    assert old in TEXT
    with pytest.raises(meshc.MeshcError) as error:
        meshc.PassManager([]).run(meshc.parse(TEXT.replace(old, new), "m.meshir"))
    assert any(words in found.message for found in error.value.diagnostics)


def test_one_rank_alone_and_other_levels_refuse_it() -> None:
    zeros = "    %z = graph.zeros_like %x : f32[B, F_rank]\n"
    module = meshc.parse(TEXT.replace(zeros, "").replace("%h, %z", "%h, %y"), "m.meshir")
    given = {"p": np.zeros((5, 2)), "x": np.zeros((5, 2)), "g": np.zeros(5)}
    with pytest.raises(meshc.MeshcError, match="runs on all ranks together"):
        run_graph(module, given)
    passes = meshc.parse_pipeline("canonicalize,eliminate-transpose,partition{grid=2x2}")
    with pytest.raises(meshc.MeshcError, match="all_reduce_residual_rms_norm cannot be partition"):
        meshc.PassManager(passes).run(module)


def rank_of(model: str, passes: str, gpus: int = 3) -> Module:
    request = CompileRequest(device="ideal", seq=6, layers=2)
    module = graph_module(load_any(model, meshc.Diagnostics()), "decode", request)
    text = f"canonicalize,eliminate-transpose{passes}"
    return meshc.PassManager(meshc.parse_pipeline(text)).run(module)


def test_every_sum_of_a_dense_model_is_fused() -> None:
    """Two of each layer and that in front of the logits; none stays alone."""
    dealt = rank_of(str(MODEL), ",tensor-parallel{ranks=3,keep=[V]}")
    after = fused(dealt)
    (loop,) = (op for op in after.walk() if isinstance(op, graph.Repeat))
    assert count(after) == 3
    assert sum(isinstance(op, ranks.AllReduceResidualRmsNorm) for op in loop.regions[0].ops) == 2
    assert not any(isinstance(op, ranks.AllReduce) for op in after.walk())
    check_same(dealt, after)


def test_batches_are_split_behind_fused_sums_as_well() -> None:
    """Each part has fused sums of its own, beside work of the other part."""
    passes = ",batch-tokens{tokens=7,requests=3},tensor-parallel{ranks=2}"
    whole = rank_of(str(MODEL), passes)
    parted = rank_of(
        str(MODEL), f"{passes},fuse-all-reduce{{multiprocessors=8}},split-tokens{{at=4}}"
    )
    assert count(parted) == 6
    check_same(whole, parted)
