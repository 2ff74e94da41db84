"""Batches on the Python target: each prompt gets what it gets alone, on any mesh, by any cache."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from mesh_programs import load_program, mesh_program, write
from numpy.typing import NDArray
from reduced import each

import meshc
from meshc.driver import CompileRequest, compile_loaded, load_any, open_weights
from meshc.support.diagnostics import Diagnostics, MeshcError

pytestmark = pytest.mark.models

TINY = Path(__file__).parents[1] / "data" / "tiny"
FIXTURES = sorted(folder.name for folder in TINY.iterdir())
PROMPTS = ([5, 17, 32, 3, 8], [9], [30, 2, 2, 31, 7, 7, 1, 12, 30], [11, 4])
TOKENS = 6
CAPACITY = 14  # the longest prompt and its answer, not a token more
POLICIES = ("shift", "cyclic", "concat")

Logits = NDArray[np.float32]


def program(name: str, mesh: str, folder: Path, **options: object):  # type: ignore[no-untyped-def]
    """A loaded program for as many requests as there are prompts, unless ``options`` differ."""
    loaded = load_any(str(TINY / name), Diagnostics())
    asked = {"mesh": mesh, "seq": CAPACITY, "dtype": "f32", "batch": len(PROMPTS), **options}
    compiled = compile_loaded(loaded, CompileRequest(**asked))  # type: ignore[arg-type]
    assert loaded.weights is not None
    tensors = open_weights(loaded.weights, loaded.config, None, Diagnostics())
    write(folder, compiled.files)
    return load_program(folder).load(tensors)


@cache
def alone(name: str, **options: object) -> list[tuple[list[int], Logits]]:
    """Tokens and logits of each prompt from a program of one core for one request."""
    with TemporaryDirectory() as folder:
        model = program(name, "1x1", Path(folder), batch=1, **options)
    found = []
    for prompt in PROMPTS:
        rows: list[Logits] = []
        tokens = model.generate(prompt, TOKENS, lambda _, row, into=rows: into.append(row.copy()))
        found.append((tokens, np.array(rows)))
    return found


def check(name: str, mesh: str, folder: Path, **options: object) -> None:
    """All prompts at once against each alone, on one core."""
    phases = {"phase": options["phase"]} if "phase" in options else {}
    model = program(name, mesh, folder / "together", **options)
    rows: list[list[Logits]] = [[] for _ in PROMPTS]
    tokens = model.generate_all(PROMPTS, TOKENS, lambda n, _, row: rows[n].append(row.copy()))
    for own, logits, (wanted, theirs) in zip(tokens, rows, alone(name, **phases), strict=True):
        assert own == wanted
        np.testing.assert_allclose(np.array(logits), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "mesh", "kv"),
    each(
        [
            ("llama-9h3-tied", "3x5", "concat"),
            ("llama-9h3-tied", "3x5", "cyclic"),
            ("qwen2-7h1", "4x2", "shift"),
            ("llama-9h3-tied", "3x5", "shift"),
            ("llama-biased-f16", "2x3", "cyclic"),
            ("qwen2-7h1", "1x1", "cyclic"),
        ],
        2,
    ),
)
def test_each_prompt_gets_what_it_gets_alone(name: str, mesh: str, kv: str, tmp_path: Path) -> None:
    check(name, mesh, tmp_path, kv=kv)


@pytest.mark.slow
@pytest.mark.parametrize("kv", POLICIES)
@pytest.mark.parametrize("mesh", ["1x1", "2x2", "1x7", "6x1", "5x3", "7x8"])
@pytest.mark.parametrize("name", FIXTURES)
def test_on_more_models_and_meshes(name: str, mesh: str, kv: str, tmp_path: Path) -> None:
    check(name, mesh, tmp_path, kv=kv)


@pytest.mark.parametrize("algo", each(["all_reduce=k_tree:2", "all_reduce=ring"], 2))
def test_collectives_carry_all_requests_in_one_message(algo: str, tmp_path: Path) -> None:
    check("llama-3h1", "3x4", tmp_path, algo=(algo,), kv="cyclic")


def test_prompts_go_through_decode_where_there_is_no_prefill(tmp_path: Path) -> None:
    check("llama-5h-mha", "2x3", tmp_path, phase="decode")


@pytest.mark.slow
def test_layers_in_several_regions_take_requests_along(tmp_path: Path) -> None:
    found = []
    for regions in (1, 2):
        passes = {"split-regions": f"split-regions{{regions={regions}}}"}
        made = mesh_program(
            str(TINY / "llama-3h1"), "3x2", CAPACITY, passes=passes, batch=len(PROMPTS)
        )
        write(tmp_path / str(regions), made.files())
        model = load_program(tmp_path / str(regions)).load(made.tensors)
        found.append(model.generate_all(PROMPTS, TOKENS))
    assert found[0] == found[1]


def test_a_model_may_say_how_many_requests_it_takes(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "examples" / "tiny_llama.mesh").read_text(encoding="utf-8")
    place = tmp_path / "three.mesh"
    place.write_text(text.replace("tiny_llama(", "tiny_llama(B=3, "), encoding="utf-8")
    compiled = meshc.compile(place, mesh="2x2", seq=CAPACITY)
    assert compiled.modules["decode"].dims["B"] == 3
    assert compiled.modules["prefill"].scalars["request"] == (0, 2)
    assert "BATCH = 3" in compiled.files["main.py"]


def test_requests_that_end_early_and_rows_without_a_request_stay_idle(tmp_path: Path) -> None:
    """The last token of a text ends it; the others go on to the end of their caches."""
    wanted = [tokens for tokens, _ in alone("llama-3h1")]
    stop = {wanted[0][1]}
    ended = [t[: next((i + 1 for i, x in enumerate(t) if x in stop), TOKENS)] for t in wanted]
    assert {len(t) for t in ended} > {TOKENS}
    model = program("llama-3h1", "2x2", tmp_path / "together", batch=6)
    assert model.generate_all(PROMPTS, TOKENS, None, stop) == ended
    assert model.generate_all(PROMPTS[:1], TOKENS) == wanted[:1]
    assert model.generate(PROMPTS[2], TOKENS) == wanted[2]
    assert model.generate_all(PROMPTS[::-1], TOKENS) == wanted[::-1]


def test_what_does_not_fit_a_batch_is_refused(tmp_path: Path) -> None:
    model = program("llama-3h1", "2x2", tmp_path, batch=2)
    for prompts, words in (
        ([], "0 prompts, but the program takes 1 to 2"),
        (PROMPTS, "4 prompts, but the program takes 1 to 2"),
        ([[5], []], "the prompt has no tokens"),
        ([[5], [5] * CAPACITY], "do not fit a cache of 14 tokens"),
    ):
        with pytest.raises(Exception, match=words):
            model.generate_all(prompts, TOKENS)


def test_a_step_wants_a_position_of_each_request(tmp_path: Path) -> None:
    model = program("llama-3h1", "2x2", tmp_path, batch=2)
    rows = {name: np.zeros(shape) for name, shape in model.decode.inputs.items()}
    for given, words in ((0, "1 values are given"), ([0], "1 values"), ([0, CAPACITY], "pos = 14")):
        with pytest.raises(ValueError, match=words):
            model.decode.run(rows, pos=given)


@pytest.mark.parametrize("kv", POLICIES)
def test_a_layer_of_attention_keeps_the_caches_of_requests_apart(kv: str) -> None:
    """Rows in, rows out: against requests that have the layer for themselves."""
    model = Path(__file__).parents[2] / "examples" / "attention.mesh"
    random = np.random.default_rng(5)
    asked = {"mesh": "3x2", "seq": 8, "phase": "decode", "dtype": "f32", "kv": kv}
    one, three = (meshc.compile(model, batch=n, **asked) for n in (1, 3))
    sizes = {
        p.name: p.tensor.shape(one.modules["decode"].dims) for p in one.modules["decode"].ports
    }
    weights = {n: random.standard_normal(sizes[n]) / 4 for n in one.weight_names}
    x = random.standard_normal((5, 3, 1, sizes["x"][-1]))
    alone = [one.load(weights) for _ in range(3)]
    together = three.load(weights)
    for step in range(5):
        (found,) = together.run({"x": x[step]}, pos=[step] * 3).values()
        for request, layer in enumerate(alone):
            (wanted,) = layer.run({"x": x[step, [request]]}, pos=step).values()
            np.testing.assert_allclose(found[[request]], wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="2 values are given of the scalar pos, not 3"):
        together.run({"x": x[0]}, pos=[0, 0])


def test_the_program_prints_the_answer_to_each_prompt(tmp_path: Path) -> None:
    compiled = meshc.compile(TINY / "llama-3h1", mesh="2x1", seq=CAPACITY, dtype="f32", batch=2)
    wanted = [a.tokens for a in compiled.load().generate_all(PROMPTS[:2], 4, ignore_eos=True)]
    loaded = load_any(str(TINY / "llama-3h1"), Diagnostics())
    assert loaded.weights is not None
    tensors = open_weights(loaded.weights, loaded.config, None, Diagnostics())
    write(tmp_path, compiled.files)
    (tmp_path / "weights").mkdir()
    for name in tensors:
        np.save(tmp_path / "weights" / f"{name}.npy", np.asarray(tensors[name], np.float32))
    words = [w for p in PROMPTS[:2] for w in ("--prompt-ids", ",".join(map(str, p)))]
    words += ["--max-tokens", "4", "--logits", "logits.npy"]
    done = subprocess.run(
        [sys.executable, "main.py", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [list(map(int, line.split(","))) for line in done.stdout.splitlines()] == wanted
    logits = np.load(tmp_path / "logits.npy")
    assert logits.argmax(-1).tolist() == wanted


def test_a_model_without_requests_cannot_be_batched() -> None:
    model = Path(__file__).parents[2] / "examples" / "mlp.mesh"
    with pytest.raises(MeshcError, match=r"unsupported-batch.*no dim B"):
        meshc.compile(model, batch=2)
