"""Steps that are cut: a kernel for each phase, which gives the bits of one kernel of all."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from drawn_decoders import drawn_decoder
from reduced import only
from task_step_cases import CASES
from task_steps import Judge, mode_of

import meshc
from meshc.backends.cuda.executor import CXX, modes
from meshc.backends.cuda.tasks.kernel_parts import every_part, kernel_parts
from meshc.ir.ops import task, tile
from meshc.support.diagnostics import MeshcError

DATA = Path(__file__).parents[1] / "data" / "tiny_cuda"
PASSES = Path(__file__).parents[1] / "passes" / "cut"

pytestmark = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


def same(found):
    first, *others = found
    return all(
        (one == other).all() for logits in others for one, other in zip(first, logits, strict=True)
    )


@pytest.mark.parametrize("name", only(CASES, "windows"))
def test_kernels_give_the_bits_of_one_that_counts_blocks(name, tmp_path):
    """Whichever kind of meeting the case has; kernels of any number of blocks, in any order of
    threads and copies."""
    case = CASES[name]
    whole, cut = (Judge.of(replace(case, meet=m), 1, tmp_path) for m in ("counter", "kernel"))
    program, others = cut.step.program, len(("Shared memory", "Bring", "Compute"))
    phases = whole.step.text.count("// ---- ") - others
    assert cut.step.text.count("__global__") == len(program.kernels) == phases > 6
    assert "met" not in program.buffers and not any(k.whole_grid for k in program.kernels.values())
    runs = [cut.check(cut.step.with_blocks(n)) for n in (40, 3)]
    assert same([whole.check(), cut.check(), *runs, *(cut.check(mode=m) for m in [*modes()][-2:])])


@pytest.mark.parametrize("seed", only(range(600, 700), 603))
def test_a_step_agrees_with_float64(seed, tmp_path):
    drawn = replace(drawn_decoder(seed), meet="kernel")
    try:
        judge = Judge.of(drawn, seed, tmp_path)
    except MeshcError as refusal:
        assert refusal.diagnostics[0].code == "does-not-fit", refusal
        return
    judge.check(mode=mode_of(seed))


@pytest.mark.models
@pytest.mark.parametrize("name", ["deepseek-4h"])
def test_a_checkpoint_gives_the_tokens_of_one_kernel(name):
    """Latents, and experts that one kernel chooses and the next ones compute."""
    made = [compiled(name, cut=cut) for cut in ("none", "all", "auto")]
    kernels = [json.loads(one.files["manifest.json"])["kernels"] for one in made]
    assert "step" in kernels[0] and "step" not in kernels[1]
    assert sum(kernel.startswith("step_") for kernel in kernels[1]) > 6
    assert kernels[2] in kernels[:2]
    found = []
    for one in made[:2]:
        with one.load(backend="cuda-cpu") as program:
            found.append(program.generate([1, 2, 3, 4, 5], max_tokens=6).tokens)
    assert found[0] == found[1] and len(found[0]) == 6


def compiled(name, **options):
    return meshc.compile(DATA / name, target="cuda", seq=24, **options)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"gpus": 2}, "--cut is all, but steps with --gpus 2 are one kernel"),
        ({"cluster": 2}, "--cut is all, but steps with --cluster 2 are one kernel"),
        ({"persistent": True}, "--persistent asks for a step of one kernel, and --cut all for"),
        ({"cut": "some"}, "--cut cannot be 'some'"),
    ],
)
def test_what_is_not_cut_is_refused(options, words):
    with pytest.raises(MeshcError, match=words):
        compiled("llama-4h2", **({"cut": "all"} | options))


def test_kernels_have_names_of_their_own():
    """A kernel of two phases may be called like that of another one, and names may have points."""
    text = (PASSES / "layers.meshir").read_text().split("# ---\n")[1]
    module = meshc.parse(text)
    phases = [op for op in module.walk() if isinstance(op, task.Phase)]
    for phase, name in zip(phases, ["y.q", "y", "Y", "y_q", *"abcdefgh"], strict=False):
        phase.name = name
    names = [part.name for part in every_part(kernel_parts(module))]
    assert names[:4] == ["step_y_q", "step_y", "step_Y", "step_y_q_1"]
    assert len(names) == len(phases) == len({*names})
    body = next(op for op in module.program.body.ops if isinstance(op, tile.For)).regions[0]
    body.ops = [op for op in body.ops if not isinstance(op, task.Meet)]
    joined = [part.name for part in every_part(kernel_parts(module))]
    assert joined[1] == "step_y_Y_y_q" and len(joined) == len({*joined})
