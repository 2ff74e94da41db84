"""Answers that fit a JSON schema: what a random model says within one, and what is refused."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from books import CAPACITY, LAYERS, MULTIPLE, REQUESTS, Books, successor
from served import Served

from meshc.frontend.checkpoints import load_tokenizer, read_config
from meshc.serving.engine import Server
from meshc.serving.policies import policy
from meshc.serving.scheduler import Scheduler

pytest.importorskip("starlette")
pytest.importorskip("openai")
pytest.importorskip("llguidance")
tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.models

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1"
BYTES, END, VOCAB = 256, 256, 260


def likelihoods(tokens):
    """Logits behind ``tokens``, all different."""
    random = np.random.default_rng([successor(tokens), len(tokens)])
    return random.standard_normal(VOCAB).astype(np.float32)


class RandomBooks(Books):
    """Books whose model says anything."""

    vocab = VOCAB

    def step(self, tokens):
        super().step(tokens)
        return {request: likelihoods(self.layers[request][0]) for request in tokens}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """A token for each byte, one that ends a text, and a few of several bytes."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [('"', ":"), ("{", '"'), ("t", "r")]
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    vocabulary |= {"".join(pair): END + 1 + n for n, pair in enumerate(merges)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary | {"</s>": END}, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["</s>"])
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return load_tokenizer(folder, replace(read_config(TINY), vocab=VOCAB, eos_ids=(END,)))


@pytest.fixture(scope="module")
def served(tokenizer):
    scheduler = Scheduler(
        policy("chunked", 8), (1.0,) * LAYERS, REQUESTS * (CAPACITY + 1), REQUESTS, MULTIPLE
    )
    with Served(tokenizer, server=Server(RandomBooks(), scheduler), eos=(END,)) as found:
        yield found


@pytest.fixture(scope="module")
def client(served):
    return served.client()


def of_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def answered(client, schema, **settings):
    """The choices of a chat that fit ``schema``."""
    asked = {"messages": [{"role": "user", "content": "ab"}], "model": "books", "max_tokens": 50}
    form = of_schema(schema)
    return client.chat.completions.create(**asked, response_format=form, **settings).choices


LETTERS = {"enum": ["a", "b", "c", "d"]}
PERSON = {
    "type": "object",
    "properties": {
        "n": {"type": "string", "maxLength": 2},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "ok": {"type": "boolean"},
    },
    "required": ["n", "age", "ok"],
    "additionalProperties": False,
}
NUMBERS = {"type": "array", "items": {"enum": [1, 22, -3]}, "minItems": 1, "maxItems": 4}


def is_person(found):
    return (
        sorted(found) == ["age", "n", "ok"]
        and len(found["n"]) <= 2
        and type(found["age"]) is int
        and 0 <= found["age"] <= 99
        and type(found["ok"]) is bool
    )


@pytest.mark.parametrize(
    ("schema", "fits"),
    [
        (PERSON, is_person),
        (LETTERS, lambda found: found in LETTERS["enum"]),
        (NUMBERS, lambda found: 1 <= len(found) <= 4 and set(found) <= {1, 22, -3}),
        ({"$ref": "#/$defs/x", "$defs": {"x": NUMBERS}}, lambda found: set(found) <= {1, 22, -3}),
    ],
)
@pytest.mark.parametrize("settings", [{"temperature": 0}, {"temperature": 2}, {"top_p": 0.5}])
def test_what_a_random_model_says_fits(client, schema, fits, settings):
    found = [
        one for seed in range(4) for one in answered(client, schema, seed=seed, n=2, **settings)
    ]
    assert all(one.finish_reason == "stop" for one in found)
    assert all(fits(json.loads(one.message.content)) for one in found)


def test_without_a_schema_it_says_something_else(client):
    asked = {"messages": [{"role": "user", "content": "ab"}], "model": "books", "max_tokens": 50}
    text = client.chat.completions.create(**asked, temperature=0).choices[0].message.content
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_of_the_tokens_that_fit_the_likeliest_comes(client, tokenizer):
    (found,) = answered(client, LETTERS, temperature=0)
    text = found.message.content
    prompt = [ord("a") - ord("a"), ord("b") - ord("a")]
    tokens = tokenizer.encode(text)
    ids = {letter: tokenizer.encode(letter)[0] for letter in "abcd"}
    logits = likelihoods([*prompt, tokens[0]])
    assert text == f'"{max(ids, key=lambda letter: logits[ids[letter]])}"'
    assert found.token_ids == [*tokens, END]


def test_every_answer_that_fits_can_come(client):
    found = {answered(client, LETTERS, seed=seed)[0].message.content for seed in range(60)}
    assert found == {'"a"', '"b"', '"c"', '"d"'}


def test_likelihoods_are_those_of_the_model(client, tokenizer):
    (found,) = answered(client, LETTERS, temperature=0, logprobs=True, top_logprobs=2)
    first = likelihoods([0, 1]).astype(np.float64)
    wanted = first - np.log(np.exp(first).sum())
    quote = tokenizer.encode('"')[0]
    assert found.logprobs.content[0].logprob == pytest.approx(wanted[quote], abs=1e-6)
    assert found.logprobs.content[0].top_logprobs[0].logprob == pytest.approx(
        wanted.max(), abs=1e-6
    )


def test_a_stream_fits_as_well(client):
    whole = answered(client, PERSON, seed=5)[0].message.content
    events = client.chat.completions.create(
        messages=[{"role": "user", "content": "ab"}], model="books", max_tokens=50, seed=5,
        stream=True, response_format=of_schema(PERSON),
    )  # fmt: skip
    assert "".join(event.choices[0].delta.content or "" for event in events) == whole


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_any_object(served, path):
    asked = {"model": "books", "max_tokens": 50, "response_format": {"type": "json_object"}}
    said = (
        {"prompt": "ab"}
        if path == "/v1/completions"
        else {"messages": [{"role": "user", "content": "ab"}]}
    )
    status, answer = served.ask("POST", path, json.dumps({**asked, **said, "seed": 3}))
    (choice,) = json.loads(answer)["choices"]
    text = choice["text"] if "prompt" in said else choice["message"]["content"]
    assert status == 200 and text.startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(text), dict)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"response_format": {"type": "xml"}}, "not of the type text"),
        ({"response_format": "json"}, "not of the type text"),
        ({"response_format": {"type": "json_schema"}}, "no object json_schema.schema"),
        ({"response_format": of_schema(True)}, "no object json_schema.schema"),
        ({"response_format": of_schema({"type": "frob"})}, "Invalid type: frob"),
        ({"response_format": of_schema({"not": {}})}, "not supported"),
        ({"response_format": of_schema({"$ref": "http://127.0.0.1/x"})}, "not supported"),
        ({"response_format": of_schema({"enum": ["x" * 70_000]})}, "more than 65536"),
        ({"response_format": of_schema(LETTERS), "ignore_eos": True}, "ignore_eos cannot be"),
    ],
)
def test_what_is_refused(served, settings, words):
    asked = {"model": "books", "messages": [{"role": "user", "content": "ab"}], **settings}
    status, answer = served.ask("POST", "/v1/chat/completions", json.dumps(asked))
    error = json.loads(answer)["error"]
    assert status == 400 and words in error["message"]
    assert error["param"] == ("ignore_eos" if "ignore_eos" in settings else "response_format")


def test_without_the_package_it_is_named(tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "meshc.serving.endpoint.schemas", None)
    with Served(tokenizer) as served:
        asked = {"model": "books", "prompt": "ab", "response_format": {"type": "json_object"}}
        status, answer = served.ask("POST", "/v1/completions", json.dumps(asked))
    assert (
        status == 400 and "pip install 'meshc[schemas]'" in json.loads(answer)["error"]["message"]
    )


def test_a_model_without_a_tokenizer_says_so():
    with Served(None) as served:
        asked = {"model": "books", "prompt": [1, 2], "response_format": {"type": "json_object"}}
        status, answer = served.ask("POST", "/v1/completions", json.dumps(asked))
    assert status == 400 and "no tokenizer" in json.loads(answer)["error"]["message"]
