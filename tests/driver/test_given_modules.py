"""Compiling text of any level, and the options that choose algorithms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meshc.backends.python import load_program
from meshc.backends.request import argument_names
from meshc.cli import main
from meshc.driver import Compiled, CompileRequest, compile_loaded, load_any
from meshc.ir.module import Port
from meshc.ir.ops import mesh
from meshc.ir.parser import parse_module
from meshc.ir.printer import print_module
from meshc.support.diagnostics import Diagnostics, MeshcError
from meshc.support.output import write_directory
from meshc.support.spans import Source

EXAMPLES = Path(__file__).parents[2] / "examples"
RANDOM = np.random.default_rng(8)
PRODUCT = """model product(M=9, K=12, N=7) {
  weights f32  accumulate f32
  main(a[M, K], b[K, N]) -> [M, N] { return a @ b }
}"""


def compiled(path: Path, **options: object) -> Compiled:
    report = Diagnostics()
    request = CompileRequest(**options)  # type: ignore[arg-type]
    return compile_loaded(load_any(str(path), report), request, report=report)


def ran(found: Compiled, folder: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    write_directory(folder, found.files, found.facts, force=True)
    (module,) = found.modules.values()
    kept = {buffer.value for buffer in module.buffers if buffer.role == "weight"}
    weights = {p.name: given[p.name] for p in ports_of(found) if p.buffer in kept}
    inputs = {name: array for name, array in given.items() if name not in weights}
    results: dict[str, np.ndarray] = load_program(folder).load(weights).run(inputs)
    return results


def ports_of(found: Compiled) -> list[Port]:
    """Where the only program gets its tensors."""
    (module,) = found.modules.values()
    return [port for port in module.ports if port.direction == "in"]


def normed(rows: np.ndarray) -> np.ndarray:
    """Rows over the root of their mean square."""
    return rows / np.sqrt((rows * rows).mean(1, keepdims=True) + 1e-5)


EXPECTED: dict[str, Callable[..., dict[str, np.ndarray]]] = {
    "column_sums": lambda v: {"sums": v.sum(2)},
    "all_gather": lambda v: {"rows": v, "columns": v.sum(1)},
    "scatter": lambda v: {"all": np.roll(v, -3)},
    "chain": lambda v: {"sum": v.sum(0)},
    "normed": lambda y, w, x, g: {"h": normed(y @ w + x) * g},
    "dispatch": lambda rows, gates, gain: {"back": rows * (gates @ gain)},
}


WRITTEN_BY_HAND = sorted(path for path in EXAMPLES.glob("*.meshir") if path.stem != "mlp")


@pytest.mark.parametrize("path", WRITTEN_BY_HAND, ids=lambda p: p.stem)
def test_examples_run(path: Path, tmp_path: Path) -> None:
    found = compiled(path)
    (module,) = found.modules.values()
    given = {
        port.name: RANDOM.standard_normal(port.tensor.shape(module.dims)).astype(np.float32)
        for port in ports_of(found)
    }
    got = ran(found, tmp_path / "out", given)
    wanted = EXPECTED[module.name](**given)
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("level", ["graph", "mesh", "tile"])
def test_a_dump_goes_on_to_the_same_program(level: str, tmp_path: Path) -> None:
    """A dump has what passes did, not what they were set to: the settings are given again."""
    source = tmp_path / "product.mesh"
    source.write_text(PRODUCT, encoding="utf-8")
    options = {"mesh": "3x2", "dtype": "f32", "algo": ("gemm=summa",)}
    laid_out = {} if level == "graph" else options
    dump = compiled(source, compile_to=level, **{"dtype": "f32"} | laid_out)
    (text,) = dump.files.values()
    path = tmp_path / "dumped.meshir"
    path.write_text(text, encoding="utf-8")
    again = compiled(path, mesh="3x2", algo=options["algo"] if level == "graph" else ())
    assert again.files["main_phase.py"] == compiled(source, **options).files["main_phase.py"]


OTHERS: dict[str, object] = {
    "target": "cuda", "device": "wse2", "mesh": "2x1", "phase": "decode", "seq": 12, "layers": 1,
    "dtype": "f16", "kv": "concat", "compile_to": "tile", "portable": True,
    "algo": ("gemm=summa",), "align": "device", "result": "roots", "choose": "cores",
    "cluster": 2, "dataflow": "split_head", "page": 1, "gpus": 2, "collectives": "peers",
    "overlap": "auto", "persistent": True, "batch": 2, "serving": "chunks", "chunk": 4,
    "phases": "one", "keep_quantised": ("q8_0",), "cache_tokens": 16,
    "drafts": 2, "nodes": 2, "kv_layout": "nhd", "kv_dtype": "fp8_e4m3",
    "form": ("q=gemv_y",), "cut": "all", "batch_tokens": 8,
    "emit": "mlir", "passes_before": ("nothing=canonicalize",),
    "passes_after": ("nothing=canonicalize",),
}  # fmt: skip
"""Of each field something else than ``attention.mesh`` is compiled with."""


def test_all_fields_are_tried() -> None:
    assert set(OTHERS) == argument_names()


@pytest.mark.parametrize("level", ["graph", "mesh", "tile"])
def test_what_a_dump_fixes_is_refused_by_name(level: str, tmp_path: Path) -> None:
    """Every option changes what comes of the dump of a phase, or is refused by its flag."""
    unheard = set(OTHERS)
    words = {"target": "CUDA kernels", "serving": "works on the graph level"}
    words |= {"form": "'q' has no form"} if level == "graph" else {}
    for phase in ("prefill", "decode"):
        made = {"seq": 8, "dtype": "f32", "phase": phase}
        made |= {} if level == "graph" else {"mesh": "2x2"}
        (text,) = compiled(EXAMPLES / "attention.mesh", compile_to=level, **made).files.values()
        path = tmp_path / "dumped.meshir"
        path.write_text(text, encoding="utf-8")
        plain = compiled(path, **made | {"mesh": "2x2"})
        assert plain.summary()[0] == "dumped on ideal, mesh 2x2"
        for name, value in OTHERS.items():
            asked = {name: value} if name == "target" else {"mesh": "2x2", name: value}
            try:
                if compiled(path, **asked).files != plain.files:
                    unheard.discard(name)
            except MeshcError as refusal:
                assert words.get(name, f"--{name.replace('_', '-')} is") in str(refusal)
                unheard.discard(name)
    # A residual is added to what this model reduces, so that there is no root to leave it at.
    assert unheard == ({"result"} if level == "graph" else set())


def test_a_dump_is_for_the_device_that_it_names(tmp_path: Path) -> None:
    graph = compiled(EXAMPLES / "mlp.mesh", compile_to="graph", device="h100x8")
    path = tmp_path / "nodes.meshir"
    path.write_text(graph.files["main.meshir"], encoding="utf-8")
    found = compiled(path, mesh="gpu=4")
    assert found.summary()[0].startswith("nodes on h100x8, mesh 4x1")
    assert found.files == compiled(path, mesh="gpu=4", device="h100x8").files
    with pytest.raises(MeshcError, match=r"--device is ideal, but 'nodes' is for h100x8"):
        compiled(path, device="ideal")


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"cluster": 2}, "--cluster"),
        ({"page": 64}, "--page"),
        ({"portable": True}, "--portable"),
        ({"target": "csl", "portable": True, "compile_to": "tile"}, "--portable"),
        ({"target": "csl", "phases": "one", "compile_to": "tile"}, "--phases"),
        ({"target": "cuda", "mesh": "4x4"}, "--mesh"),
        ({"target": "cuda", "kv": "shift"}, "--kv"),
        ({"target": "cuda", "compile_to": "tile"}, "--compile-to"),
        ({"algo": ("gemm=summa", "gemm=cannon")}, "--algo gemm is given twice"),
    ],
)
def test_what_nothing_would_obey_is_refused(options: dict[str, object], flag: str) -> None:
    with pytest.raises(MeshcError, match=flag):
        CompileRequest(**options).check()  # type: ignore[arg-type]


def test_a_claim_that_does_not_hold_is_refused(tmp_path: Path) -> None:
    text = (EXAMPLES / "relay.meshir").read_text(encoding="utf-8")
    path = tmp_path / "broken.meshir"
    path.write_text(text.replace('rank = "4 - x"', 'rank = "x"'), encoding="utf-8")
    with pytest.raises(MeshcError, match="rank does not grow by one"):
        compiled(path)


@pytest.mark.parametrize("algo", ["cyclic_shift", "cannon", "summa", "allgather"])
def test_algorithms_of_products(algo: str, tmp_path: Path) -> None:
    source = tmp_path / "product.mesh"
    source.write_text(PRODUCT, encoding="utf-8")
    options = {"mesh": "3x3", "algo": (f"gemm={algo}",), "align": "host"}
    (module,) = compiled(source, compile_to="mesh", **options).modules.values()
    (op,) = (o for o in module.walk() if isinstance(o, mesh.Gemm))
    assert op.algo == algo
    text = print_module(module)
    assert print_module(parse_module(Source("again", text))) == text
    a, b = RANDOM.standard_normal((9, 12)), RANDOM.standard_normal((12, 7))
    (got,) = ran(compiled(source, **options), tmp_path / "out", {"a": a, "b": b}).values()
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["gemm", "all_reduce"])
@pytest.mark.parametrize("head", ["M=9", "M=1"])
def test_auto_is_what_nobody_asks_for(op: str, head: str, tmp_path: Path) -> None:
    source = tmp_path / "product.mesh"
    text = PRODUCT.replace("M=9", head).replace("b[K, N]", "b[N, K]")
    source.write_text(text.replace("a @ b", "a @ transpose(b)"), encoding="utf-8")
    plain = compiled(source, mesh="3x4")
    assert compiled(source, mesh="3x4", algo=(f"{op}=auto",)).files == plain.files


def test_a_setting_in_the_header_of_a_module_is_refused(tmp_path: Path) -> None:
    text = (EXAMPLES / "column_sums.meshir").read_text(encoding="utf-8")
    path = tmp_path / "auto.meshir"
    path.write_text(
        text.replace("  options ", "  options all_reduce = auto, ", 1), encoding="utf-8"
    )
    with pytest.raises(MeshcError, match="all_reduce is no option of a header but a setting"):
        compiled(path)


@pytest.mark.parametrize("way", ["ring", "pipeline", "k_tree:2"])
def test_a_matrix_may_be_an_input_of_a_gemv(way: str, tmp_path: Path) -> None:
    source = tmp_path / "gemv.mesh"
    source.write_text(PRODUCT.replace("M=9", "M=1"), encoding="utf-8")
    found = compiled(source, mesh="3x4", algo=(f"all_reduce={way}",))
    a, b = RANDOM.standard_normal((1, 12)), RANDOM.standard_normal((12, 7))
    (got,) = ran(found, tmp_path / "out", {"a": a, "b": b}).values()
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


def test_a_vector_times_a_matrix_that_is_an_input(tmp_path: Path) -> None:
    source = tmp_path / "gemv.mesh"
    text = PRODUCT.replace("M=9, ", "").replace("[M, ", "[")
    source.write_text(text, encoding="utf-8")
    found = compiled(source, mesh="3x4")
    a, b = RANDOM.standard_normal(12), RANDOM.standard_normal((12, 7))
    (got,) = ran(found, tmp_path / "out", {"a": a, "b": b}).values()
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


def test_a_right_operand_that_is_computed_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "squares.meshir"
    source.write_text(
        """module @squares level(mesh) {
          dims K = 4, N = 6
          options dtype = f32, accumulate = f32
          mesh y = 2, x = 2
          func @main(in %a: f32[K]<K_y:2>, in %b: f32[K, N]<K_y:2 N_x:3>) -> (f32[N]<N_x:3>) {
            %c = mesh.mul %b, %b : f32[K, N]<K_y:2 N_x:3>
            %p = mesh.gemv %a, %c {contract = [K]} : f32[N]<N_x:3 +y>
            %s = mesh.all_reduce %p {axis = y} : f32[N]<N_x:3>
            mesh.return %s
          }
        }""",
        encoding="utf-8",
    )
    with pytest.raises(MeshcError, match="neither a weight nor an input"):
        compiled(source)


@pytest.mark.parametrize("way", ["ring", "tree", "two_phase", "k_tree:3"])
def test_a_result_may_stay_at_the_roots(way: str, tmp_path: Path) -> None:
    """A product of one row is a GEMV; its reduction ends on the first row or column."""
    source = tmp_path / "gemv.mesh"
    source.write_text(
        """model gemv(M=1, K=40, N=24) {
          weights f32  accumulate f32
          param w[K, N]
          main(x[M, K]) -> [M, N] { return x @ w }
        }""",
        encoding="utf-8",
    )
    options = {"mesh": "4x6", "algo": (f"all_reduce={way}",), "result": "roots"}
    found = compiled(source, **options)
    (module,) = found.modules.values()
    assert not any(c.multicast for c in module.channels)
    write_directory(tmp_path / "out", found.files, found.facts, force=True)
    x, w = RANDOM.standard_normal((1, 40)), RANDOM.standard_normal((40, 24))
    (got,) = load_program(tmp_path / "out").load({"w": w}).run({"x": x}).values()
    np.testing.assert_allclose(got, x @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algo": ("gemm=strassen",)}, "--algo gemm cannot be 'strassen'"),
        ({"algo": ("gem=cannon",)}, "--algo cannot be 'gem=cannon'"),
        ({"algo": ("all_reduce=k_tree:7",)}, "cannot be 'k_tree:7'"),
        ({"align": "left"}, "--align cannot be 'left'"),
        ({"result": "home"}, "--result cannot be 'home'"),
    ],
)
def test_unknown_choices_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(MeshcError, match=words):
        CompileRequest(**options).check()  # type: ignore[arg-type]


@pytest.mark.parametrize(("phase", "scalar"), [("prefill", "len"), ("decode", "pos")])
def test_a_cache_needs_its_scalar(phase: str, scalar: str, tmp_path: Path) -> None:
    options = {"seq": 6, "phase": phase}
    graph = compiled(EXAMPLES / "attention.mesh", compile_to="graph", **options)
    (module,) = graph.modules.values()
    del module.scalars[scalar]
    (tmp_path / "m.meshir").write_text(print_module(module))
    with pytest.raises(MeshcError, match=f"run-time scalar '{scalar}'"):
        compiled(tmp_path / "m.meshir", mesh="2x2")


ATTENTION = """module @attention level(graph) holds(transpose_free) {
  dims B = 1, L = 1, S = 4, E = 4, H = 2, G = 2, D = LANES
  scalars pos = 0..3
  options phase = decode, dtype = f32, accumulate = f32
  func @decode(in %x: f32[B, L, E], weight %wq: f32[E, H, D], weight %wk: f32[E, G, D], weight %wv: f32[E, G, D], state %k: f32[B, S, G, D], state %v: f32[B, S, G, D]) -> (f32[B, L, H, D], f32[B, S, G, D], f32[B, S, G, D]) {
    %new_k, %new_v, %q = graph.matmul %x, %wk, %wv, %wq {contract = [E]} : f32[B, L, G, D], f32[B, L, G, D], f32[B, L, H, D]
    %keys = graph.append %k, %new_k {dim = S, rows = L} : f32[B, S, G, D]
    %values = graph.append %v, %new_v {dim = S, rows = L} : f32[B, S, G, D]
    %s = graph.matmul %q, %keys {contract = [D], group = [H, G]} : f32[B, L, H, S]
    %p = graph.softmax %s {dim = S, mask = causal, rows = L} : f32[B, L, H, S]
    %o = graph.matmul %p, %values {contract = [S], group = [H, G]} : f32[B, L, H, D]
    graph.return %o, %keys, %values
  }
}
"""  # noqa: E501


@pytest.mark.parametrize("lanes", [1, 3, 5])
@pytest.mark.parametrize("grid", ["1x1", "3x2"])
def test_heads_of_an_odd_number_of_lanes(
    lanes: int, grid: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lanes are kept in pairs, so a core may have one of padding."""
    path = tmp_path / "odd.meshir"
    path.write_text(ATTENTION.replace("LANES", str(lanes)))
    words = ["compile", str(path), "--mesh", grid, "--check", "-o", str(tmp_path / "out")]
    assert main(words) == 0
    assert "passes compute what they were given" in capsys.readouterr().err


@pytest.mark.parametrize("target", ["python", "csl", "cuda", "ttlang"])
def test_no_target_makes_a_program_of_tasks(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Path(__file__).parents[1] / "passes" / "expand_tasks" / "example.meshir"
    text = case.read_text().split("# ---\n")[1]
    path = tmp_path / "tasks.meshir"
    path.write_text(text)
    assert main(["compile", str(path), "--target", target, "-o", str(tmp_path / "out")]) == 1
    assert "error[not-tile-level]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
