"""``meshc schedule`` from the command line, and the models that it reads."""

import csv
import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reduced import crossed

import meshc
from meshc.cli import main
from meshc.driver.served_shapes import served_model
from meshc.support.diagnostics import MeshcError

CATALOGUE = Path(meshc.__file__).parent / "frontend" / "catalogue"
TINY = Path(__file__).parent.parent / "data"
QUICK = ["--rate", "1.3", "--requests", "12", "--seeds", "2"]
KEYS = (
    "ttft_mean_s", "ttft_p99_s", "tbt_mean_ms", "tbt_p99_ms", "tbt_std_ms", "slo_attainment",
    "expert_load_bytes", "energy_mj_per_token", "jain",
)  # fmt: skip


def schedule(capsys, *words, code=0):
    assert main(["schedule", *words]) == code
    return capsys.readouterr()


@pytest.mark.parametrize(
    ("policy", "trace"),
    crossed(["chunked", "layered", "combined", "disaggregated"], ["arxiv", "sharegpt"]),
)
def test_json_has_bands(capsys, policy, trace):
    words = ["qwen3-30b-a3b", "--policy", policy, "--trace", trace, *QUICK, "--json"]
    first = schedule(capsys, *words).out
    found = json.loads(first)
    for key in KEYS:
        assert found[key]["low"] <= found[key]["mean"] <= found[key]["high"]
    assert found["slo"] == {"ttft_s": 10.0 if trace == "arxiv" else 5.0, "tbt_ms": 125.0}
    assert schedule(capsys, *words).out == first


def test_collectives_cost_the_iterations_of_a_server(capsys):
    """Sums that are fused, then hidden, serve no worse; on a node without numbers that are fitted
    to servers they are those of the baseline."""
    words = ["qwen3-235b-a22b", "--device", "h100x8", "--policy", "layered", *QUICK, "--json"]
    usual, *others = (
        json.loads(schedule(capsys, *words, *given).out)
        for given in ([], *(["--collectives", n] for n in ("baseline", "fuse-only", "tokenweave")))
    )
    assert usual["collectives"] == "baseline" and usual == others[0]
    waits = [found["ttft_mean_s"]["mean"] for found in others]
    assert waits[0] > waits[1] > waits[2] > 0
    assert others[2]["expert_load_bytes"]["mean"] > others[1]["expert_load_bytes"]["mean"]
    two = ["qwen3-30b-a3b", *QUICK, "--json"]
    fitted = json.loads(schedule(capsys, *two).out)
    assert fitted["collectives"] is None
    text = schedule(capsys, *words[:-1], "--collectives", "tokenweave").out
    assert "8 GPUs of h100x8, collectives tokenweave, arxiv" in text
    refused = schedule(capsys, *two, "--without-switch", code=1).err
    assert "--without-switch goes with --tokens or with --collectives" in refused
    refused = schedule(capsys, *two, "--collectives", "baseline", code=1).err
    assert "error[device-number]" in refused


def test_several_policies_stand_side_by_side(capsys):
    both = ["--policy", "chunked", "--policy", "layered"]
    words = ["gpt-oss-20b", *both, "--groups", "latency:40", *QUICK]
    table = schedule(capsys, *words).out
    assert "chunked: mean (5 % .. 95 %)" in table and "layered: mean" in table
    found = json.loads(schedule(capsys, *words, "--json").out)
    assert list(found["policies"]) == ["chunked", "layered"]


def test_a_trace_of_a_file(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n1,200,6\n2,300,7\n")
    what = ("requests", "arrivals", "seeds", "cv")
    words = ["qwen3-30b-a3b", "--trace", str(path), "--seeds", "1"]
    found = json.loads(schedule(capsys, *words, "--json").out)
    assert [found[key] for key in what] == [3, "trace", None, None]
    found = json.loads(schedule(capsys, *words, "--json", "--rate", "9").out)
    assert [found[key] for key in what] == [1000, "drawn", 1, 1]
    table = schedule(capsys, *words).out
    assert "one run, since nothing is drawn" in table and "5 %" not in table
    drawn = schedule(capsys, *words, "--rate", "9").out
    assert "9 requests/s in the place of the arrivals of the trace" in drawn


def test_requests_beyond_the_positions_of_a_model_are_told_of(capsys, tmp_path):
    """Positions that are learned end where their table does, others are made for any token."""
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,16,5\n1,4090,6\n2,4090,7\n")
    words = ["llama-2-7b", "--trace", str(path)]
    assert "1 of 3 requests of the first run" in schedule(capsys, *words).out
    found = json.loads(schedule(capsys, *words, "--json").out)
    assert (found["positions"], found["requests_beyond_positions"]) == (4096, 1)
    assert "positions" not in schedule(capsys, *words, "--requests", "2").out
    learned = str(TINY / "tiny_families" / "gpt2-3h-untied-f16")  # 24 positions
    words = [learned, "--trace", str(path), "--device", "h100x8", "--gpus", "3"]
    assert schedule(capsys, *words, "--requests", "1").out
    refused = schedule(capsys, *words, code=1).err
    assert "request 1 may come to hold 4096 tokens" in refused and "24 learned positions" in refused


@pytest.mark.parametrize("words", [["--seeds", "2"], ["--cv", "2"], ["--requests", "4"]])
def test_what_a_trace_of_arrivals_settles_is_refused(capsys, tmp_path, words):
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0,100,5\n1,200,6\n2,300,7\n")
    refused = schedule(capsys, "qwen3-30b-a3b", "--trace", str(path), *words, code=1).err
    assert f"{words[0]} is {words[1]}" in refused and "--rate draws" in refused
    two = ["--requests", "2", "--json"]
    found = json.loads(schedule(capsys, "qwen3-30b-a3b", "--trace", str(path), *two).out)
    assert found["requests"] == 2


def test_pictures_of_a_trace_have_its_mean_rate(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n5,100,5\n6,200,6\n9,300,7\n")
    words = ["qwen3-30b-a3b", "--trace", str(path), "--plots", str(tmp_path / "out")]
    schedule(capsys, *words)
    assert ">0.5/s<" in (tmp_path / "out" / "frontier.svg").read_text()
    path.write_text("arrival_s,prompt_tokens,output_tokens\n5,100,5\n5,200,6\n")
    assert "come all at once" in schedule(capsys, *words, code=1).err


def test_each_request_has_a_row(capsys, tmp_path):
    """Their means are those that are printed of one seed."""
    path = tmp_path / "requests.csv"
    words = ["qwen3-30b-a3b", "--requests", "12", "--seeds", "1", "--rate", "1", "--rate", "2"]
    words += ["--policy", "chunked", "--policy", "layered", "--json"]
    found = json.loads(schedule(capsys, *words, "--per-request", str(path)).out)["results"]
    rows = [*csv.DictReader(path.read_text().splitlines())]
    assert len(rows) == 48
    for told in found:
        own = [r for r in rows if (r["policy"], float(r["rate"])) == (told["policy"], told["rate"])]
        assert [int(row["request"]) for row in own] == [*range(12)]
        for name, metric in (("ttft_s", "ttft_mean_s"), ("latency_s", "latency_mean_s")):
            mean = sum(float(row[name]) for row in own) / 12
            assert mean == pytest.approx(told[metric]["mean"], abs=1e-5)
        for row in own:
            gaps = (int(row["output_tokens"]) - 1) * float(row["tbt_mean_ms"]) / 1e3
            assert gaps == pytest.approx(float(row["latency_s"]) - float(row["ttft_s"]), 1e-3)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--rate", "1", "--weights", "fp7"], "bad-argument"),
        (["--tokens", "64", "--weights", "fp8"], "bad-argument"),
        (["--rate", "1", "--per-request", "/no/such/folder/x.csv"], "unwritable"),
        (["--rate", "1", "--auto", "--per-request", "x.csv"], "bad-argument"),
        (["--tokens", "64", "--per-request", "x.csv"], "bad-argument"),
    ],
)
def test_rows_and_weights_that_cannot_be_are_refused(capsys, words, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"error[{code}]" in schedule(capsys, "qwen3-30b-a3b", *words, code=1).err
    assert not list(tmp_path.iterdir())


def with_heads(folder, heads, keys):
    """A configuration with so many heads."""
    config = json.loads((CATALOGUE / "llama-3-8b.json").read_text())
    config |= {"num_attention_heads": heads, "num_key_value_heads": keys, "head_dim": 128}
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_heads_that_compile_refuses_are_not_simulated(capsys, tmp_path):
    refused = schedule(capsys, with_heads(tmp_path, 30, 8), *QUICK, code=1).err
    assert "not a multiple of 8" in refused


def test_heads_that_are_padded_are_simulated_with_their_padding(capsys, tmp_path):
    """33 heads on two GPUs are 34, as tensor-parallel deals them."""
    odd, even, fewer = (
        schedule(capsys, with_heads(tmp_path, heads, heads), *QUICK, "--json").out
        for heads in (33, 34, 32)
    )
    assert json.loads(odd)["ttft_mean_s"] == json.loads(even)["ttft_mean_s"]
    assert json.loads(odd)["ttft_mean_s"] != json.loads(fewer)["ttft_mean_s"]


def test_a_flag_given_twice_is_refused(capsys):
    words = ["qwen3-8b", *QUICK, "--chunk", "64", "--gpus", "1", "--gpus", "1"]
    assert "error[bad-argument]: --gpus is given twice" in schedule(capsys, *words, code=1).err


def test_devices_and_chunks_are_compared(capsys, tmp_path):
    """Each as it is alone; a policy that cuts no prompts stands once on each device."""
    words = ["qwen3-30b-a3b", *QUICK, "--policy", "chunked", "--policy", "layered"]
    words += ["--device", "h100x2", "--device", "h200x8", "--chunk", "512", "--chunk", "1024"]
    path = tmp_path / "requests.csv"
    found = json.loads(schedule(capsys, *words, "--json", "--per-request", str(path)).out)
    assert [(r["policy"], r["device"], r["chunk"]) for r in found["results"]] == [
        (policy, device, chunk)
        for device in ("h100x2", "h200x8")
        for policy, chunk in (("chunked", 512), ("layered", None), ("chunked", 1024))
    ]
    assert (found["device"], found["gpus"]) == (["h100x2", "h200x8"], [2, 8])
    alone = ["--policy", "chunked", "--device", "h200x8", "--chunk", "1024", "--json"]
    told = json.loads(schedule(capsys, "qwen3-30b-a3b", *QUICK, *alone).out)
    assert found["results"][-1]["ttft_mean_s"] == told["ttft_mean_s"]
    rows = [*csv.DictReader(path.read_text().splitlines())]
    assert {(row["device"], row["chunk"]) for row in rows if row["policy"] == "chunked"} == {
        ("h100x2", "512"), ("h100x2", "1024"), ("h200x8", "512"), ("h200x8", "1024"),
    }  # fmt: skip
    table = schedule(capsys, *words).out
    assert "2 GPUs of h100x2; on 8 GPUs of h200x8" in table
    assert "\nchunked of 1024 on h200x8" in table and "\nlayered on h100x2" in table


@pytest.mark.parametrize("flag", [["--auto"], ["--tokens", "64"]])
def test_one_device_is_chosen_for_and_scheduled(capsys, flag):
    words = ["qwen3-8b", *flag, "--device", "h100x4", "--device", "h100x8"]
    words += ["--rate", "1"] if flag == ["--auto"] else []
    assert f"--device is given twice, and one value would count with {flag[0]}" in (
        schedule(capsys, *words, code=1).err
    )


def test_a_long_prompt_holds_up_no_short_ones_where_it_is_limited(capsys, tmp_path):
    place = tmp_path / "trace.csv"
    place.write_text("arrival_s,prompt_tokens,output_tokens\n0,20000,4\n0.1,100,4\n0.2,100,4\n")
    words = ["qwen3-30b-a3b", "--trace", str(place), "--seeds", "1", "--json"]
    found = [
        json.loads(schedule(capsys, *words, *limit).out)
        for limit in ((), ("--long-chunk", "384"), ("--long-chunk", "128", "--long-prompts", "2"))
    ]
    assert [(own["long_chunk"], own["long_prompts"]) for own in found] == [
        (None, None), (384, 1), (128, 2),
    ]  # fmt: skip
    held, *others = (own["ttft_p50_s"]["mean"] for own in found)
    assert all(other < held / 10 for other in others)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["qwen3-30b-a3b"], "bad-argument"),
        (["qwen3-30b-a3b", "--trace", "nowhere"], "bad-argument"),
        (["qwen3-30b-a3b", "--trace", "nowhere.csv", "--rate", "1"], "unreadable"),
        (["qwen3-30b-a3b", *QUICK, "--policy", "best"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--policy", "layered", "--chunk", "9"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--groups", "4"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--policy", "layered", "--groups", "some"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--policy", "layered", "--groups", "0"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--chunk", "0"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--gpus", "3"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--cv", "nan"], "bad-argument"),
        (["qwen3-30b-a3b", "--rate", "-1"], "bad-argument"),
        (["qwen3-30b-a3b", "--rate", "inf"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--seeds", "0"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--processes", "0"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--scheduler", "tcp://x:1", "--processes", "2"], "bad-argument"),
        (["qwen3-8b", *QUICK, "--policy", "disaggregated", "--gpus", "1"], "bad-argument"),
        (["qwen3-8b", *QUICK, "--policy", "layered"], "dense-layered"),
        (["qwen2-72b", *QUICK], "does-not-serve"),
        (["qwen3-30b-a3b", *QUICK, "--device", "nothing"], "unknown-device"),
        (["no-model", *QUICK], "unknown-model"),
        (["qwen3-30b-a3b", *QUICK, "--auto", "--chunk", "512"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--auto", "--long-chunk", "64"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--long-chunk", "512"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--long-prompts", "2"], "bad-argument"),
        (["qwen3-30b-a3b", *QUICK, "--policy", "layered", "--long-chunk", "9"], "bad-argument"),
        (["qwen3-30b-a3b", "--tokens", "512", "--long-chunk", "9"], "bad-argument"),
    ],
)
def test_what_cannot_be_is_refused(capsys, words, code):
    assert f"error[{code}]" in schedule(capsys, *words, code=1).err


def test_a_request_that_never_fits_is_refused(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("prompt_tokens,output_tokens\n9000000,1\n")
    words = ["qwen3-30b-a3b", "--trace", str(path), *QUICK]
    for more in ([], ["--processes", "2"]):
        assert "error[request-too-large]" in schedule(capsys, *words, *more, code=1).err


def test_a_dense_model_is_layered_when_forced(capsys):
    words = ["qwen3-8b", "--policy", "layered", "--policy", "chunked", "--gpus", "1", *QUICK]
    found = json.loads(schedule(capsys, *words, "--force", "--json").out)["policies"]
    assert found["layered"]["tbt_mean_ms"]["mean"] > found["chunked"]["tbt_mean_ms"]["mean"]


def test_auto_chooses_groups_for_experts_and_chunks_for_a_dense_model(capsys):
    load = ["--rate", "1.3", "--requests", "24", "--seeds", "1", "--auto"]
    found = json.loads(schedule(capsys, "qwen3-30b-a3b", *load, "--json").out)
    assert "--policy layered" in found["chosen"] or "--policy combined" in found["chosen"]
    assert len(found["tried"]) == 12 and found["over_chunked_512"]["ttft_mean_s"] < 0
    missed = [round(100 * (1 - one["slo_attainment"]["mean"])) for one in found["tried"]]
    assert missed == sorted(missed)
    dense = schedule(capsys, "qwen3-8b", "--gpus", "1", *load).out
    assert "chosen: --policy chunked" in dense and "section 5.13" in dense
    assert "layered" not in dense and "on 1 GPU of" in dense


def test_auto_keeps_a_tight_objective(capsys):
    """A smaller bound on gaps asks for more groups."""
    load = ["--rate", "1.3", "--requests", "24", "--seeds", "1", "--auto", "--json"]
    loose, tight = (
        json.loads(schedule(capsys, "qwen3-30b-a3b", *load, "--slo-tbt", bound).out)
        for bound in ("125", "40")
    )
    assert loose["chosen"] != tight["chosen"]
    assert tight["tried"][0]["slo_attainment"]["mean"] > 0.5


def test_several_rates_and_their_pictures(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    words = ["qwen3-30b-a3b", "--policy", "chunked", "--policy", "combined", "--requests", "6"]
    words += ["--seeds", "2", "--rate", "1.2", "--rate", "1.5"]
    table = schedule(capsys, *words, "--plots", str(tmp_path / "first")).out
    assert "combined at 1.5/s" in table
    found = json.loads(schedule(capsys, *words, "--plots", str(tmp_path / "second"), "--json").out)
    assert [(r["policy"], r["rate"]) for r in found["results"]] == [
        ("chunked", 1.2), ("combined", 1.2), ("chunked", 1.5), ("combined", 1.5),
    ]  # fmt: skip
    assert found["rate"] == [1.2, 1.5]
    for name in ("attainment.svg", "frontier.svg", "timeline.svg"):
        text = (tmp_path / "first" / name).read_text()
        assert text.startswith("<?xml") and ">combined</text>" in text
        assert text == (tmp_path / "second" / name).read_text()


@pytest.mark.parametrize(
    ("module", "package", "extra", "flags"),
    [
        ("serving.plots", "matplotlib", "plots", ["--plots", "out"]),
        ("support.cluster", "distributed", "cluster", ["--scheduler", "tcp://x:1"]),
    ],
)
def test_flags_of_extras_say_what_they_need(capsys, monkeypatch, module, package, extra, flags):
    monkeypatch.delitem(sys.modules, f"meshc.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    said = schedule(capsys, "qwen3-30b-a3b", *QUICK, *flags, code=1).err
    assert "error[missing-extra]" in said and f"pip install 'meshc[{extra}]'" in said


# --- models


def config(tmp_path, **values):
    usual = {
        "model_type": "qwen3_moe", "num_hidden_layers": 4, "hidden_size": 64, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 100,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in {**usual, **values}.items() if v is not None}))
    return served_model(str(tmp_path))


def test_shapes_of_families(tmp_path):
    """What is compiled is served, and no more: layers without experts behind others are refused."""
    for values in ({"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}):
        with pytest.raises(MeshcError, match="config-unsupported"):
            config(tmp_path, **values)
    first, *others = config(tmp_path, mlp_only_layers=[0]).layers
    assert (first.experts, first.dense_width) == (0, 96)
    assert {(layer.experts, layer.dense_width) for layer in others} == {(8, 0)}
    own = {"num_experts": None, "num_local_experts": 8, "moe_intermediate_size": None}
    mixtral = config(tmp_path, model_type="mixtral", **own)
    assert mixtral.layers[0].expert_width == 96
    shared = config(tmp_path, model_type="qwen2_moe", shared_expert_intermediate_size=48)
    assert shared.layers[0].dense_width == 48
    windows = served_model("gpt-oss-20b").layers
    assert [layer.window for layer in windows[:4]] == [128, None, 128, None]


KEYS_OF_CONFIGS = (
    "model_type", "num_hidden_layers", "hidden_size", "head_dim", "num_attention_heads",
    "num_key_value_heads", "intermediate_size", "moe_intermediate_size", "num_experts",
    "num_experts_per_tok", "vocab_size", "layer_types", "sliding_window", "mlp_only_layers",
    "decoder_sparse_step", "tie_word_embeddings", "shared_expert_intermediate_size",
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=3),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(), SCALARS))


@given(values=st.dictionaries(st.sampled_from(KEYS_OF_CONFIGS), VALUES, max_size=4))
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_configuration_is_a_shape_or_refused(tmp_path, values):
    try:
        found = config(tmp_path, **values)
    except MeshcError as error:
        assert all(d.severity == "error" for d in error.diagnostics)
    else:
        assert found.parameters > 0 and found.active_parameters <= found.parameters


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"model_type": "mamba"}, "unsupported-architecture"),
        ({"hidden_size": None}, "config-missing-key"),
        ({"hidden_size": 10**9}, "config-bad-value"),
        ({"num_experts_per_tok": 9}, "config-bad-value"),
        ({"num_hidden_layers": 10**6}, "config-bad-value"),
        ({"layer_types": ["some"] * 4, "sliding_window": 4}, "config-unsupported"),
        ({"vocab_size": -3}, "config-bad-value"),
        ({"num_key_value_heads": 5}, "config-bad-value"),
    ],
)
def test_wrong_configurations_are_refused(tmp_path, values, code):
    with pytest.raises(MeshcError) as caught:
        config(tmp_path, **values)
    assert code in {d.code for d in caught.value.diagnostics}


def test_latents_and_whole_experts(capsys):
    """Each GPU keeps the latents, and the busiest of GPUs with whole experts is waited for."""
    words = ["deepseek-v2-lite", "--device", "h100x8", *QUICK, "--json"]
    shared, whole = (
        json.loads(schedule(capsys, *words, *given).out) for given in ([], ["--experts", "whole"])
    )
    assert shared["kv_bytes_per_token"] == whole["kv_bytes_per_token"] == 8 * 27 * 576 * 2
    assert (shared["experts"], whole["experts"]) == ("features", "whole")
    assert shared["tbt_mean_ms"] != whole["tbt_mean_ms"]
    assert "whole experts on each GPU" in schedule(capsys, *words[:-1], "--experts", "whole").out
    halves = ["deepseek-v2-lite", "--policy", "disaggregated", *QUICK, "--json"]
    assert json.loads(schedule(capsys, *halves).out)["kv_bytes_per_token"] == 27 * 576 * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["qwen3-30b-a3b"], "share each expert"),
        (["llama-3-8b", "--device", "h100x8"], "has no experts"),
        (["llama-3-8b", "--tokens", "512"], "has no experts"),
    ],
)
def test_whole_experts_that_are_not_there_are_refused(capsys, words, said):
    rate = [] if "--tokens" in words else ["--rate", "1"]
    assert said in schedule(capsys, *words, *rate, "--experts", "whole", code=1).err


def test_prompts_that_begin_alike(capsys, tmp_path):
    """By columns of a trace and by a flag; requests as they come, and drawn."""
    path = tmp_path / "talk.csv"
    header = "arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens"
    path.write_text(f"{header}\n0,700,3,a,703\n50,900,2,a,902\n")
    out = tmp_path / "requests.csv"
    words = ["qwen3-30b-a3b", "--trace", str(path), "--json"]
    found = json.loads(schedule(capsys, *words, "--per-request", str(out)).out)
    assert found["prefix"] == "trace" and found["prefix_hit_share"]["mean"] == 702 / 1600
    assert [row["known_tokens"] for row in csv.DictReader(out.read_text().splitlines())] == [
        "0",
        "702",
    ]
    drawn = json.loads(schedule(capsys, *words, *QUICK).out)
    assert drawn["prefix_hit_share"]["mean"] > 0.4
    words = ["qwen3-30b-a3b", *QUICK, "--json"]
    none, all_ = (json.loads(schedule(capsys, *words, *f).out) for f in ([], ["--prefix", "50%"]))
    assert none["prefix"] is None and none["prefix_hit_share"]["mean"] == 0
    assert 0.2 < all_["prefix_hit_share"]["mean"] < 0.5
    assert all_["ttft_mean_s"]["mean"] < none["ttft_mean_s"]["mean"]


@pytest.mark.parametrize("given", ["0", "0%", "101%", "x", "-5", "1e3", "10000001"])
def test_prefixes_that_are_none_are_refused(capsys, given):
    assert "--prefix" in schedule(capsys, "qwen3-30b-a3b", *QUICK, f"--prefix={given}", code=1).err


def test_a_trace_says_its_prefixes_itself(capsys, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,prefix,prefix_tokens\n9,2,talk,11\n")
    words = ["qwen3-30b-a3b", "--trace", str(path), *QUICK, "--prefix", "5"]
    assert "says what its prompts begin with" in schedule(capsys, *words, code=1).err
    assert main(["serve-trace", "smollm2-135m", "--trace", str(path)]) == 1
    assert "begin each with its own tokens" in capsys.readouterr().err
