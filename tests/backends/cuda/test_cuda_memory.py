"""What a decode step takes of a GPU's memory, and the refusal of what does not fit."""

import re
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshc.backends.cuda import from_json, gpu_steps
from meshc.backends.cuda.memory import check_memory, memory_of, pages_that_fit
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.estimating import estimate
from meshc.driver.questions import Question
from meshc.support.diagnostics import Diagnostics, MeshcError

ROOM = 141_000_000_000  # of an H200, as devices/data/h200.toml has it
MEMORY = "global_memory_bytes = {value = 141_000_000_000"
DATA = Path(__file__).parents[2] / "data"


def compiled(model, **options):
    report = Diagnostics()
    request = CompileRequest(target="cuda", dtype="bf16", **options)
    return compile_loaded(load_any(model, report), request, (), report)


def test_bytes_are_those_of_the_model():
    result = compiled("llama-3-8b", seq=1000, batch=3)
    found = memory_of(from_json(result.files["manifest.json"]))
    # All extents of this model are whole blocks of 16 x 16, so that packing adds nothing.
    assert found.weights == 2 * 8_030_261_248
    tokens = 1008  # whole pages of 16
    assert found.caches == 2 * 2 * 3 * 32 * 8 * 128 * tokens
    assert f"{found.total} bytes of the GPU's memory" in result.use_of_a_core("decode")[0]


def test_pages_of_a_server_are_as_many_as_fit():
    def served(tokens):
        how = {"serving": "chunks", "batch": 4, "seq": 64, "cache_tokens": tokens}
        return from_json(compiled(str(DATA / "tiny" / "llama-3h1"), **how).files["manifest.json"])

    program = served(640)
    assert program.pages == 41
    room = memory_of(program).total - 1
    assert pages_that_fit(program, room) == 624
    assert memory_of(served(624)).total <= room
    small = SimpleNamespace(name="small", global_memory_bytes=room, enforced=True)
    with pytest.raises(MeshcError) as refusal:
        check_memory(program, small)
    (said,) = refusal.value.diagnostics
    assert said.code == "does-not-fit" and "41 pages of 16 tokens take" in said.notes[1]
    assert said.help == "caches of 624 tokens fit (--cache-tokens 624)"


def test_a_chunk_of_many_tokens_has_buffers_of_its_own():
    few, many = (
        from_json(compiled("llama-3-8b", seq=1000, **o).files["manifest.json"])
        for o in ({}, {"chunk": 512})
    )
    one, other = memory_of(few), memory_of(many)
    assert (one.weights, one.caches) == (other.weights, other.caches)
    # Streams, logits; features, normed and attended values and queries of 16 bits, projections in
    # f32; what tokens are and are behind, how many, and their pages.
    streams, logits, features = 2 * 4 * 512 * 4096, 4 * 128256, 2 * 512 * 14336
    own, integers = 512 * (3 * 2 * 4096 + 4 * (32 + 2 * 8) * 128), 4 * (2 * 512 + 1 + 63)
    chunk = sum(b.bytes for name, b in many.buffers.items() if name.startswith("chunk_"))
    assert chunk == streams + logits + features + own + integers


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"batch": 16, "page": 64}, marks=pytest.mark.slow)]
)
def test_the_capacity_that_a_refusal_names_is_the_most_that_fits(options):
    with pytest.raises(MeshcError) as caught:
        compiled("llama-3-8b", seq=10_000_000, **options)
    (problem,) = caught.value.diagnostics
    assert problem.code == "does-not-fit"
    needs, has, short = map(int, re.findall(r"\d{6,}", problem.message))
    assert has == ROOM and short == needs - has
    parts = [int(re.search(r"(\d+) bytes", note)[1]) for note in problem.notes]
    assert sum(parts) == needs
    fitting = int(problem.help.split()[-1].rstrip(")"))
    fits = compiled("llama-3-8b", seq=fitting, **options).files["manifest.json"]
    assert memory_of(from_json(fits)).total <= ROOM
    with pytest.raises(MeshcError):
        compiled("llama-3-8b", seq=fitting + 1, **options)


def test_where_a_step_by_tags_does_not_fit_its_tasks_meet_by_a_counter(tmp_path, monkeypatch):
    """Tags need another version of what tasks give, and a count of the runs."""
    monkeypatch.setattr(gpu_steps, "CHUNKS", ())
    tiny = str(DATA / "tiny" / "llama-3h1")

    def step(device):
        return from_json(compiled(tiny, seq=64, device=device).files["manifest.json"])

    by_tags = step("h200")
    assert "runs" in by_tags.buffers
    room = memory_of(by_tags).total - 1
    entry = (resources.files("meshc.devices") / "data" / "h200.toml").read_text(encoding="utf-8")
    assert entry.count(MEMORY) == 1
    device = tmp_path / "small.toml"
    device.write_text(entry.replace(MEMORY, f"global_memory_bytes = {{value = {room}"))
    counted = step(str(device))
    assert "runs" not in counted.buffers and memory_of(counted).total <= room


def test_weights_alone_may_not_fit():
    with pytest.raises(MeshcError) as caught:
        compiled("qwen2-72b", seq=16)
    (problem,) = caught.value.diagnostics
    assert problem.code == "does-not-fit"
    assert problem.help == (
        "--gpus 2 fits; no caches fit beside the weights: use fewer layers (--layers) or a smaller "
        "model"
    )


def test_a_product_whose_operands_do_not_fit_is_not_estimated_to():
    extent = 1 << 19  # squared, two bytes each: four times what the GPU has
    found = estimate(Question(1, extent, extent, "8x8", "h200"), "gemv", "tree")
    assert "M" in found.violates
