"""How likely tokens were, several answers, and other settings of requests that clients send."""

import asyncio
import json
import math

import numpy as np
import pytest
from books import VOCAB, continued, one_hot, successor
from served import EOS, LONG, Letters, Served

from meshc.serving.replaying import Entry
from meshc.serving.sampling import Sampling, probabilities
from meshc.serving.scoring import LEAST, Chooser, score

pytest.importorskip("starlette")
pytest.importorskip("openai")


@pytest.fixture(scope="module")
def letters():
    with Served(Letters()) as found:
        yield found


@pytest.fixture(scope="module")
def client(letters):
    return letters.client()


def wanted(prompt, most, stop=EOS):
    return continued(Entry(0, 0.0, tuple(prompt), most, stop))


def logprobs_behind(tokens):
    """Of every token behind ``tokens``, by their definition."""
    exact = np.exp(one_hot(successor(tokens)))
    return np.log(exact / exact.sum())


def test_scores_are_logarithms_of_the_softmax():
    logits = np.array([1.0, 3.0, 3.0, -np.inf, 0.5], np.float32)
    found = score(logits, 3, 2)
    exact = np.exp([1.0, 3.0, 3.0, -np.inf, 0.5])
    assert found.logprob == LEAST
    assert [token for token, _ in found.top] == [1, 2]
    assert found.top[0][1] == pytest.approx(math.log(exact[1] / exact.sum()), rel=1e-12)
    assert score(logits, 0, 0).top == ()


def test_given_tokens_come_first_and_draw_nothing():
    drawn = []
    chooser = Chooser(lambda logits: drawn.append(logits) or 7, (5, 6), 1)
    assert [chooser(one_hot(n)) for n in range(4)] == [5, 6, 7, 7]
    assert len(drawn) == 2 and [one.token for one in chooser.scores] == [5, 6, 7, 7]


def test_a_piece_has_the_scores_of_its_own_tokens():
    """Also where the tokens of later pieces have come before it is told."""
    from meshc.serving.endpoint.answers import Answers, _Answer
    from meshc.serving.endpoint.asked import asked
    from meshc.serving.texts import Flow

    body = json.dumps({"model": "books", "prompt": [1], "logprobs": 1}).encode()
    wanted = asked(body, "books", None, 9, 99)
    chooser = Chooser(lambda logits: 4, (), 1)
    one = _Answer((1,), Flow(None, (1,), ()), chooser, 0, "")
    for number in range(3):
        chooser(one_hot(number))

    async def told():
        answers, found = Answers(None, None, None, (), wanted), []
        for one.heard in (1, 3):
            found.append(len(await answers._likely(one)))
        return found

    assert asyncio.run(told()) == [1, 2]


@pytest.mark.parametrize("most", [0, 1, 4])
def test_a_prompt_is_scored_as_lm_evaluation_harness_asks(client, most):
    """``echo`` with ``logprobs``: each token behind all before it, the first one behind nothing;
    end tokens in the prompt end nothing."""
    prompt = [1, EOS[0], 5, 2, EOS[0], 4]
    found = client.completions.create(
        model="books", prompt=prompt, max_tokens=most, temperature=0, logprobs=2, echo=True, seed=1
    )
    (choice,) = found.choices
    tokens = prompt + (wanted(prompt, most) if most else [])
    likely = choice.logprobs
    assert likely.tokens == [Letters().continuation((), [token]) for token in tokens]
    assert likely.token_logprobs[0] is None and likely.top_logprobs[0] is None
    assert likely.text_offset == list(range(len(tokens)))
    for at in range(1, len(tokens)):
        exact = logprobs_behind(tokens[:at])
        assert likely.token_logprobs[at] == pytest.approx(exact[tokens[at]], rel=1e-12)
        top = likely.top_logprobs[at]
        best = Letters().continuation((), [successor(tokens[:at])])
        assert max(top, key=top.get) == best and len(top) in (2, 3)
    assert choice.text.startswith("bdfcde") and choice.token_ids == tokens[len(prompt) :]
    assert found.usage.prompt_tokens == len(prompt)
    assert found.usage.completion_tokens == len(tokens) - len(prompt)
    if most == 0:
        assert (choice.text, choice.finish_reason) == ("bdfcde", "length")


def test_several_long_prompts_are_scored_beside_others(client):
    prompts = [[1], LONG, [2, 4, 6, 8], [3] * 9]
    found = client.completions.create(
        model="books", prompt=prompts, max_tokens=1, temperature=0, logprobs=1, echo=True
    )
    for prompt, choice in zip(prompts, found.choices, strict=True):
        exact = [logprobs_behind(prompt[:at])[prompt[at]] for at in range(1, len(prompt))]
        assert choice.logprobs.token_logprobs[1:-1] == pytest.approx(exact, rel=1e-12)
        assert choice.token_ids == wanted(prompt, 1)


@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_says_the_same(client, echo):
    how = {"model": "books", "prompt": "bce", "max_tokens": 5, "temperature": 0, "logprobs": 1}
    whole = client.completions.create(**how, echo=echo).choices[0]
    events = list(client.completions.create(**how, echo=echo, stream=True))
    likely = [event.choices[0].logprobs for event in events]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [one for each in likely for one in getattr(each, name)]
        assert parts == getattr(whole.logprobs, name)
    assert "".join(event.choices[0].text for event in events) == whole.text
    assert whole.text.startswith("bce") == echo


def test_echo_alone_says_the_prompt(client):
    found = client.completions.create(
        model="books", prompt=[[1, 2], [4]], max_tokens=2, temperature=0, echo=True
    )
    assert [choice.text[:1] for choice in found.choices] == ["b", "e"]
    assert found.choices[0].text.startswith("bc") and found.choices[0].logprobs is None
    assert found.choices[0].token_ids == wanted([1, 2], 2)


def test_tokens_of_a_chat_have_their_likelihoods(client):
    found = client.chat.completions.create(
        model="books", messages=[{"role": "user", "content": "bc"}], temperature=0,
        max_tokens=3, logprobs=True, top_logprobs=2,
    )  # fmt: skip
    tokens = wanted([1, 2], 3)
    content = found.choices[0].logprobs.content
    assert [one.token for one in content] == [Letters().continuation((), [t]) for t in tokens]
    for at, one in enumerate(content):
        exact = logprobs_behind([1, 2, *tokens[:at]])
        assert one.logprob == pytest.approx(exact[tokens[at]], rel=1e-12)
        assert one.bytes == list(one.token.encode()) and len(one.top_logprobs) == 2


def test_several_answers_to_a_prompt_are_those_of_their_seeds(client):
    how = {"model": "books", "prompt": [LONG, [1]], "max_tokens": 6, "temperature": 2, "seed": 5}
    found = [client.completions.create(**how, n=3) for _ in range(2)]
    ids = [[choice.token_ids for choice in one.choices] for one in found]
    assert ids[0] == ids[1] and len(ids[0]) == 6 and ids[0][0] != ids[0][1]
    assert [choice.index for choice in found[0].choices] == list(range(6))
    assert found[0].usage.prompt_tokens == len(LONG) + 1
    assert found[0].usage.completion_tokens == sum(map(len, ids[0]))
    events = list(client.completions.create(**how, n=3, stream=True))
    streamed = [[] for _ in range(6)]
    for event in events:
        streamed[event.choices[0].index] += event.choices[0].token_ids
    assert streamed == ids[0]


def test_ends_can_be_passed_over_and_others_named(client):
    free = wanted(LONG, 20, ())
    how = {"model": "books", "max_tokens": 20, "temperature": 0}
    ending = next(p for p in ([n] for n in range(VOCAB)) if len(wanted(p, 20)) < 20)
    found = client.completions.create(prompt=ending, **how, extra_body={"ignore_eos": True})
    assert found.choices[0].token_ids == wanted(ending, 20, ())
    stop = free[2]
    found = client.completions.create(prompt=LONG, **how, extra_body={"stop_token_ids": [stop]})
    assert found.choices[0].token_ids == free[: free.index(stop) + 1]
    assert found.choices[0].finish_reason == "stop"


def test_settings_that_change_nothing_are_passed_over(letters):
    asked = {
        "model": "books", "prompt": [1], "max_tokens": 2, "temperature": 0, "store": True,
        "metadata": {"a": "b"}, "parallel_tool_calls": True, "service_tier": "auto", "user": "u",
        "safety_identifier": "s", "repetition_penalty": 1.0, "min_tokens": 0, "top_k": -1,
        "skip_special_tokens": True, "best_of": 1, "prediction": {"type": "content"},
        "guided_json": None, "logit_bias": {}, "suffix": None, "typical_p": 1,
    }  # fmt: skip
    status, body = letters.ask("POST", "/v1/completions", json.dumps(asked))
    assert status == 200
    assert json.loads(body)["choices"][0]["token_ids"] == wanted([1], 2)


@pytest.mark.parametrize(
    ("changes", "status", "field", "code"),
    [
        ({"model": "other"}, 404, "model", "model_not_found"),
        ({"colour": 1}, 400, "colour", "unknown_parameter"),
        ({"presence_penalty": 1}, 400, "presence_penalty", "unsupported_value"),
        ({"guided_json": {"type": "object"}}, 400, "guided_json", "unsupported_value"),
        ({"temperature": 3}, 400, "temperature", None),
    ],
)
def test_refusals_name_the_field_and_a_code(letters, changes, status, field, code):
    asked = {"model": "books", "prompt": [1], **changes}
    found, body = letters.ask("POST", "/v1/completions", json.dumps(asked))
    error = json.loads(body)["error"]
    assert (found, error["param"], error["code"]) == (status, field, code)


def test_min_p_leaves_out_what_is_far_less_likely():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    shares = probabilities(logits, Sampling(1.0, min_p=0.4))
    np.testing.assert_allclose(shares, [0.625, 0.375, 0, 0], rtol=1e-6)
    both = probabilities(logits, Sampling(1.0, top_k=3, min_p=0.2))
    np.testing.assert_allclose(both, np.array([0.5, 0.3, 0.15, 0]) / 0.95, rtol=1e-6)
