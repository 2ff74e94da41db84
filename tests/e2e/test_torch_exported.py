"""Programs of torch.export, as models of the language, give the numbers of transformers."""

import json

import numpy as np
import pytest

import meshc
from meshc.cli import main
from meshc.interp.sessions import Session
from meshc.support.diagnostics import MeshcError

WORD = "the extra is not installed: pip install 'meshc[torch]'"
torch = pytest.importorskip("torch", reason=WORD)
transformers = pytest.importorskip("transformers", reason=WORD)
from torch.export import Dim, export  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("default")]

WIDTH, WORDS, TOKENS = 48, 96, 23
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": WORDS,
    "max_position_embeddings": 64,
    "attn_implementation": "sdpa",
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 16},
    "gemma": {},
    "phi3": {},
    "stablelm": {},
    "granite": {},
    "olmo2": {},
    "smollm3": {},
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
LLAMA3 = {
    **YARN,
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
WHOLE = {
    **{family: (family, options) for family, options in FAMILIES.items()},
    "three layers": ("llama", {"num_hidden_layers": 3}),
    "one table": ("llama", {"tie_word_embeddings": True, "num_hidden_layers": 2}),
    "rope llama3": ("llama", {"rope_parameters": LLAMA3}),
    "rope yarn": ("llama", {"rope_parameters": YARN}),
    "rope linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e3, "factor": 4.0}},
    ),
    "bf16": ("gemma", {"dtype": torch.bfloat16}),
    "f16": ("llama", {"dtype": torch.float16, "num_hidden_layers": 2}),
    "windows by turns": (
        "gemma3_text",
        {
            "sliding_window": 8,
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 8,
        },
    ),
    "a window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
    ),
    "layer norms": ("starcoder2", {"sliding_window": None}),
}


def model_of(family, **options):
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(family, **{**SIZES, **options})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


class Layer(torch.nn.Module):
    """One layer with the angles of its positions."""

    def __init__(self, model):
        super().__init__()
        self.rotary, self.layer = model.model.rotary_emb, model.model.layers[0]

    def forward(self, x, position_ids):
        angles = self.rotary(x, position_ids)
        return self.layer(
            x, attention_mask=None, position_ids=position_ids, position_embeddings=angles
        )


class Whole(torch.nn.Module):
    """From tokens to logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        return self.model(input_ids=input_ids, use_cache=False).logits


def program_of(module, *given, **dynamic):
    with torch.no_grad():
        return export(module, given, dynamic_shapes=dynamic)


ROWS = {1: Dim("rows", min=4, max=64)}
IDS = torch.arange(7)[None]


def whole_program(model):
    return program_of(Whole(model), IDS, input_ids=ROWS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_gives_the_numbers_of_transformers(family):
    layer = Layer(model_of(family, **FAMILIES[family]))
    program = program_of(layer, torch.randn(1, 7, WIDTH), IDS, x=ROWS, position_ids=ROWS)
    imported = meshc.torch.import_exported(program, name=family)
    compiled = meshc.compile(imported.load(), compile_to="graph", phase="prefill", seq=TOKENS)
    x = torch.randn(1, TOKENS, WIDTH)
    with torch.no_grad():
        wanted = layer(x, torch.arange(TOKENS)[None]).numpy()
    given = {**imported.weights, "hidden": x.numpy()}
    (got,) = meshc.run(compiled.modules["prefill"], given, len=TOKENS)
    np.testing.assert_allclose(got, wanted, atol=3e-6)


@pytest.mark.parametrize("case", WHOLE)
def test_steps_of_a_model_give_the_logits_of_transformers(case):
    family, options = WHOLE[case]
    model = model_of(family, **options)
    imported = meshc.torch.import_exported(whole_program(model), name=family)
    compiled = meshc.compile(imported.load(), compile_to="graph", phase="decode", seq=TOKENS)
    ids = torch.randint(0, WORDS, (1, TOKENS))
    with torch.no_grad():
        wanted = model.float()(input_ids=ids, use_cache=False).logits.numpy()
    session = Session(compiled.modules["decode"], imported.weights)
    for at in range(TOKENS):
        (got,) = session.step({"tokens": ids[:, at : at + 1].numpy()}, {"pos": at})
        np.testing.assert_allclose(got[:, 0], wanted[:, at], atol=3e-6)


def test_a_file_is_imported_and_runs(tmp_path, capsys):
    """The tokens of emitted Python are those that transformers chooses."""
    model = model_of("qwen3", num_hidden_layers=2)
    torch.export.save(whole_program(model), tmp_path / "My-Model.pt2")
    out = tmp_path / "out"
    assert main(["import-torch", str(tmp_path / "My-Model.pt2"), "-o", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["name"] == "my_model" and said["model"] == str(out / "my_model.mesh")
    assert {path.stem for path in (out / "weights").glob("*.npy")} == {*said["weights"]}
    run = ["run", said["model"], "--weights", said["folder"], "--mesh", "2x2", "--json"]
    assert main([*run, "--prompt-ids", "5,17,42", "--max-tokens", "5", "--ignore-eos"]) == 0
    with torch.no_grad():
        ids = torch.tensor([[5, 17, 42]])
        for _ in range(5):
            chosen = model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1)
            ids = torch.cat([ids, chosen[:, None]], 1)
    assert json.loads(capsys.readouterr().out)["tokens"] == ids[0, 3:].tolist()
    assert main(["import-torch", str(tmp_path / "My-Model.pt2")]) == 0
    assert capsys.readouterr().out == (out / "my_model.mesh").read_text()


def test_masks_of_ones_are_dropped():
    model = model_of("llama")
    given = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "use_cache": False}
    shapes = {"input_ids": ROWS, "attention_mask": ROWS, "use_cache": None}
    with torch.no_grad():
        program = export(model, (), given, dynamic_shapes=shapes)
    plain = meshc.torch.import_exported(whole_program(model))
    masked = meshc.torch.import_exported(program)
    assert masked.text == plain.text


class Odd(torch.nn.Module):
    """A function of a tensor and params."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x):
        return self.function(x, self.weight)


def heads(x):
    return x.view(1, -1, 6, 8).transpose(1, 2)


def attend(x, w, **options):
    query = heads(torch.nn.functional.linear(x, w))
    found = torch.nn.functional.scaled_dot_product_attention(query, query, query, **options)
    return found.transpose(1, 2).reshape(1, -1, WIDTH)


ODD = {
    "aten.softmax": lambda x, w: torch.softmax(x, -1),
    "aten.relu": lambda x, w: torch.relu(x) @ w,
    "aten.matmul": lambda x, w: x @ x.transpose(1, 2),
    "'aten.pow' is not read as it is used here": lambda x, w: x**3,
    "only means of squares": lambda x, w: x.mean(-1, keepdim=True),
    "it divides by a tensor": lambda x, w: x / w[0],
    "no mask hides": lambda x, w: attend(x, w),
    "other tokens than those": lambda x, w: attend(
        x, w, attn_mask=torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu()
    ),
    "a part of the rows": lambda x, w: x[:, 1:],
    "its tables are not those of RoPE": lambda x, w: _tables(x),
    "its angles are not those": lambda x, w: _rotated(x, 2.0),
    "it adds a multiple": lambda x, w: torch.add(x, x, alpha=2),
    "a result of the program is no value": lambda x, w: x.pow(2),
    "it makes whole numbers": lambda x, w: x.to(torch.int32),
    "dims that do not go together": lambda x, w: heads(x),
}


def _angles(x, start):
    at = torch.arange(x.shape[1], dtype=torch.float32)[:, None] + start
    rates = 1e4 ** (-torch.arange(WIDTH // 2) / (WIDTH / 2))
    return torch.cat([at * rates, at * rates], -1)


def _rotated(x, start):
    half = torch.cat([-x[..., WIDTH // 2 :], x[..., : WIDTH // 2]], -1)
    return x * _angles(x, start).cos() + half * _angles(x, start).sin()


def _tables(x):
    return x * _angles(x, 0.0).cos() + x * _angles(x, 0.0).sin()


@pytest.mark.parametrize("words", ODD)
def test_what_the_language_cannot_say_is_refused_by_name(words):
    program = program_of(Odd(ODD[words]), torch.randn(1, 7, WIDTH), x=ROWS)
    with pytest.raises(MeshcError) as refused:
        meshc.torch.import_exported(program)
    (found,) = refused.value.diagnostics
    assert found.code == "export-unsupported" and words in found.message


def test_positions_from_0_on_are_rope():
    program = program_of(Odd(lambda x, w: _rotated(x, 0.0)), torch.randn(1, 7, WIDTH), x=ROWS)
    assert "= rope(hidden, 10000.0)" in meshc.torch.import_exported(program).text


@pytest.mark.parametrize(
    ("module", "given", "shapes", "words"),
    [
        (lambda: Whole(model_of("llama")), (IDS,), None, "for 7 rows of 'input_ids' alone"),
        (
            lambda: Whole(model_of("mistral", sliding_window=4096)),
            (IDS,),
            {"input_ids": ROWS},
            "compared with 4096, and the program takes 64 rows at most",
        ),
        (
            lambda: Counted(),
            (torch.randn(1, 7, WIDTH), IDS),
            {"x": ROWS, "count": ROWS},
            "'count' is no token ids that are embedded, no positions and no mask",
        ),
        (
            lambda: Counted(),
            (torch.randn(1, 7, WIDTH), torch.randn(1, 7, WIDTH)),
            {"x": ROWS, "count": ROWS},
            "2 inputs to follow",
        ),
    ],
)
def test_programs_of_other_inputs_are_refused(module, given, shapes, words):
    with torch.no_grad():
        program = export(module(), given, dynamic_shapes=shapes)
    with pytest.raises(MeshcError) as refused:
        meshc.torch.import_exported(program)
    assert words in refused.value.diagnostics[0].message


class Counted(torch.nn.Module):
    """Two inputs."""

    def forward(self, x, count):
        return (
            x * count.reshape(1, -1, WIDTH) if count.is_floating_point() else x * count[..., None]
        )


def test_a_file_that_is_no_program_is_refused(tmp_path):
    path = tmp_path / "x.pt2"
    path.write_bytes(b"no archive")
    with pytest.raises(MeshcError) as refused:
        meshc.torch.import_exported(path)
    assert refused.value.diagnostics[0].code == "bad-export"
