"""Mixtures of experts in emitted CSL, on the simulator: layers beside a loop that sends each row to
its experts, whole models beside the interpreter of their graphs.

``tests/families`` has recorded and drawn checkpoints beside transformers."""

import numpy as np
import pytest
from csl_prompts import Conversation
from csl_runs import emit, run_files
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laying_out import laid_out
from tensor_programs import graph_of
from test_routings import sent, tensors, text

from meshc.devices import device
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to

MODEL = """\
use blocks
model drawn(E={E}, H={H}, G={G}, D={D}, X={X}, F={F}, V=11, layers={layers}) {{
  weights {dtype}  accumulate f32
  param embedding[V, E], final_norm[E], lm_head[E, V]
  main(tokens[B, L]) -> [B, L, V] {{
    x = embed(tokens, embedding)
    repeat layers {{
      param attn_norm[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]
      param ffn_norm[E], router[E, X], bias[X], w_gate[E, X, F], w_up[E, X, F], w_down[X, F, E]
      x = llama_attention(x, attn_norm, wq, wk, wv, wo)
      h = rms_norm(x, ffn_norm)
      x = x + experts(h, top_k({scores}(h @ router), {K}{options}), w_gate, w_up, w_down)
    }}
    return x when prefill
    return rms_norm(x, final_norm) @ lm_head
  }}
}}
"""
OPTIONS = ("", ", normalise = true", ", bias = bias", ", bias = bias, normalise = true")


def layer(case, arch, mesh, forms=(), algo=""):
    """The files of a layer of experts, whose products are computed by ``forms``."""
    rows, experts, count, scores, options = case
    passes = {"select-dispatch": f"select-dispatch{{algo={algo}}}"} if algo else {}
    if forms:
        named = ",".join(f'"{form}"' for form in forms)
        passes["partition"] = f"partition{{forms=[{named}]}}"
    module = graph_of(text(rows, experts, count, f"{scores}(x @ router)", options), mesh)
    module.device = device(arch)
    tile = PassManager(pipeline_to("tile", laid_out(passes, mesh))).run(module)
    return emit({"main": tile})


def computed(files, given_tensors, folder, monkeypatch):
    """The result of a layer."""
    (found,) = run_files(files, given_tensors, folder, monkeypatch)[0].values()
    return found


def wanted_of(case, given_tensors):
    """What a loop over rows gives, and how many rows each expert got."""
    _, _, count, scores, options = case
    return sent(given_tensors, count, scores == "softmax", "normalise" in options)


def check_layer(case, bias, arch, mesh, folder, monkeypatch, seed=0, **options):
    """A layer in CSL beside the loop; how many rows each expert got."""
    values = tensors(case[0], case[1], bias, seed)
    values = {name: array.astype(np.float32) for name, array in values.items()}
    found = computed(layer(case, arch, mesh, **options), values, folder, monkeypatch)
    wanted, load = wanted_of(case, values)
    assert np.abs(found - wanted).max() <= 1e-4 * max(1.0, np.abs(wanted).max())
    return load


FORMS = {
    "found": (),
    "features": ("result_1=gemm",),
    "experts": ("result_1=gemm_experts",),
    "dispatched": ("result_1=dispatch",),
}


@pytest.mark.parametrize(
    ("form", "mesh"),
    [
        pytest.param(
            form, mesh, marks=() if (form, mesh) == ("dispatched", "2x2") else pytest.mark.slow
        )
        for form in FORMS
        for mesh in ("2x2", "3x2")
    ],
)
def test_some_experts_get_no_rows(form, mesh, tmp_path, monkeypatch):
    bias = np.array([-4.0, 0, 0, -4, 0, -4])
    case = (5, 6, 2, "softmax", ", normalise = true")
    load = check_layer(case, bias, "wse3", mesh, tmp_path, monkeypatch, forms=FORMS[form])
    assert load.sum() == 10 and not load[[0, 3, 5]].any()


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["multicast", "ring", "gather"])
def test_all_rows_go_to_one_expert(algo, tmp_path, monkeypatch):
    bias = np.where(np.arange(5) == 3, 4.0, 0.0)
    options = {"forms": FORMS["dispatched"], "algo": algo}
    case = (7, 5, 1, "sigmoid", "")
    load = check_layer(case, bias, "wse2", "3x2", tmp_path, monkeypatch, **options)
    assert load.tolist() == [0, 0, 0, 7, 0]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["2x2", "3x2"])
def test_of_equal_scores_the_first_are_chosen(mesh, tmp_path, monkeypatch):
    """Of each two experts whose columns of the router are the same. Quarters make sums exact."""
    values = tensors(4, 6, np.zeros(6), seed=1)
    for name in ("x", "router"):
        values[name] = np.round(4 * values[name]) / 4
    values["router"][:, 3:] = values["router"][:, :3]
    values = {name: array.astype(np.float32) for name, array in values.items()}
    case = (4, 6, 3, "sigmoid", "")
    found = computed(layer(case, "wse3", mesh), values, tmp_path, monkeypatch)
    wanted, _ = wanted_of(case, values)
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@st.composite
def layers(draw):
    """A layer of experts, how its gates are chosen, and how it is compiled."""
    experts = draw(st.integers(1, 9))
    scores, options = draw(st.sampled_from(["softmax", "sigmoid"])), draw(st.booleans())
    case = (
        draw(st.integers(1, 8)),
        experts,
        draw(st.integers(1, experts)),
        scores,
        ", normalise = true" if options else "",
    )
    bias = draw(
        st.lists(st.sampled_from([0.0, 0.3, -0.3, 4.0]), min_size=experts, max_size=experts)
    )
    mesh = f"{draw(st.integers(1, 4))}x{draw(st.integers(1, 4))}"
    arch, seed = draw(st.sampled_from(["wse2", "wse3"])), draw(st.integers(0, 999))
    return case, np.array(bias), arch, mesh, seed


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[*HealthCheck])
@given(drawn=layers())
def test_drawn_layers(drawn, tmp_path_factory):
    case, bias, arch, mesh, seed = drawn
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("layer")
        load = check_layer(case, bias, arch, mesh, folder, patch, seed)
    assert load.sum() == case[0] * case[2]


@st.composite
def models(draw):
    """Sizes of a model, how it is compiled, and lengths of prompts that it is given together. In
    types of 16 bits all experts are chosen: rounding alone may make a choice another one."""
    dice = draw(st.randoms(use_true_random=True))
    groups, experts = dice.randint(1, 2), dice.randint(1, 7)
    dtype, batch = dice.choice(["f32", "f32", "f16", "bf16"]), dice.choice([1, 1, 2, 3])
    rows, seq = dice.randint(1, 3), dice.randint(2, 7)
    sizes = {
        "E": dice.randint(2, 12),
        "H": groups * dice.randint(1, 2),
        "G": groups,
        "D": 2 * dice.randint(1, 3),
        "X": experts,
        "F": dice.randint(2, 8),
        "K": dice.randint(1, experts) if dtype == "f32" else experts,
        "layers": dice.randint(1, 2),
        "scores": dice.choice(["softmax", "sigmoid"]),
        "options": dice.choice(OPTIONS),
    }
    options = {
        "mesh": f"{dice.randint(1, 3)}x{rows}",
        "dtype": dtype,
        "seq": seq,
        "batch": batch,
        "device": dice.choice(["wse2", "wse3"]),
        "chunk": dice.choice([None, rows * dice.randint(1, 2)]),
        "algo": dice.choice([(), ("dispatch=ring",), ("dispatch=multicast",)]),
    }
    return sizes, options, [dice.randint(1, seq) for _ in range(batch)]


def check_model(drawn, folder):
    """The logits of all steps that fit the caches beside those of the interpreter."""
    sizes, options, lengths = drawn
    path = folder / "drawn.mesh"
    path.write_text(MODEL.format(dtype=options["dtype"], **sizes))
    talk = Conversation(path, folder, **options)
    found = talk.compare_all(lengths, talk.room - max(lengths) + 1)
    assert found.agrees, (drawn, found)


SMALL = {"E": 6, "H": 2, "G": 1, "D": 2, "X": 5, "F": 3, "K": 2, "layers": 2, "scores": "softmax"}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["2x2", "3x2", "1x3"])
def test_a_batch_of_requests(mesh, tmp_path):
    options = {"mesh": mesh, "dtype": "f32", "seq": 5, "batch": 3, "device": "wse3", "algo": ()}
    check_model((SMALL | {"options": OPTIONS[3]}, options, [4, 1, 3]), tmp_path)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
@given(drawn=models())
def test_drawn_models(drawn, tmp_path_factory):
    check_model(drawn, tmp_path_factory.mktemp("model"))
