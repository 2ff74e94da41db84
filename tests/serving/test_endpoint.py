"""``meshc serve`` before the public OpenAI client: answers, streams, cancelled and bad requests,
many at once, and a signal that lets finish what runs. Nothing here waits without a limit."""

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from books import CAPACITY, VOCAB
from served import LIMIT_S, LONG, Letters, Served, wait_until, wanted

from meshc.cli import main
from meshc.serving.endpoint.asked import asked
from meshc.serving.sampling import Sampling

pytestmark = pytest.mark.serve

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1"


@pytest.fixture(params=[None, Letters()], ids=["ids", "letters"])
def served(request):
    with Served(request.param) as found:
        yield found


@pytest.fixture
def letters():
    with Served(Letters()) as found:
        yield found


def test_a_completion_has_text_tokens_reason_and_counts(served):
    prompt = [1, 2, 10]
    found = served.client().completions.create(
        model="books", prompt=prompt, temperature=0, max_tokens=6
    )
    tokens, reason = wanted(prompt, 6)
    (choice,) = found.choices
    assert (choice.finish_reason, choice.token_ids) == (reason, tokens)
    shown = tokens[:-1] if reason == "stop" else tokens
    spelled = served.tokenizer and served.tokenizer.continuation(prompt, shown)
    assert choice.text == (spelled or "".join(f"{token} " for token in shown))
    assert found.usage.total_tokens == len(prompt) + len(tokens)
    assert found.model == "books" and found.object == "text_completion"


def test_a_stream_gives_the_same_text_piece_by_piece(served):
    client = served.client()
    whole = client.completions.create(model="books", prompt=[5, 5], temperature=0, max_tokens=9)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = list(
        client.completions.create(
            model="books", prompt=[5, 5], temperature=0, max_tokens=9, **options
        )
    )
    *pieces, counts = events
    assert "".join(e.choices[0].text for e in pieces) == whole.choices[0].text
    assert [t for e in pieces for t in e.choices[0].token_ids] == whole.choices[0].token_ids
    reasons = [e.choices[0].finish_reason for e in pieces]
    assert reasons == [None] * (len(pieces) - 1) + [whole.choices[0].finish_reason]
    assert counts.choices == [] and counts.usage == whole.usage


def test_a_chat_is_answered_as_its_prompt_is_and_streams_the_same(letters):
    client = letters.client()
    asks = [{"role": "user", "content": "bc"}, {"role": "assistant", "content": "k"}]
    found = client.chat.completions.create(
        model="books", messages=asks, temperature=0, max_completion_tokens=6
    )
    tokens, reason = wanted([1, 2, 10], 6)
    (choice,) = found.choices
    shown = tokens[:-1] if reason == "stop" else tokens
    text = Letters().continuation([], shown)
    assert (choice.message.role, choice.message.content) == ("assistant", text)
    assert (choice.finish_reason, choice.token_ids) == (reason, tokens)
    assert found.object == "chat.completion" and found.usage.prompt_tokens == 3
    events = list(
        client.chat.completions.create(
            model="books", messages=asks, temperature=0, max_tokens=6, stream=True
        )
    )
    assert {event.object for event in events} == {"chat.completion.chunk"}
    deltas = [event.choices[0].delta for event in events]
    assert "".join(delta.content for delta in deltas) == text
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert events[-1].choices[0].finish_reason == reason


def test_an_answer_of_a_chat_has_the_room_that_is_left(letters):
    prompt = Letters().continuation([], LONG)
    found = letters.client().chat.completions.create(
        model="books", messages=[{"role": "user", "content": prompt}], temperature=0
    )
    tokens, reason = wanted(LONG, CAPACITY + 1 - len(LONG))
    assert (found.choices[0].token_ids, found.choices[0].finish_reason) == (tokens, reason)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"messages": [{"role": "system", "content": "b"}]}, "no system messages"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "differ"),
        ({"tools": [{"type": "function"}]}, "tools cannot be"),
        ({"prompt": "bc"}, "no setting 'prompt'"),
        ({"logprobs": 3}, "logprobs is 3"),
        ({"top_logprobs": 3}, "for answers with logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21"),
        ({"n": 0}, "n is 0"),
    ],
)
def test_chats_that_are_none_are_refused(letters, changes, words):
    asked = {"model": "books", "messages": [{"role": "user", "content": "bc"}], **changes}
    status, body = letters.ask("POST", "/v1/chat/completions", json.dumps(asked))
    assert status == 400 and words in json.loads(body)["error"]["message"]


def test_several_prompts_are_answered_side_by_side(served):
    prompts = [[1], [2, 4], [10, 0, 1]]
    found = served.client().completions.create(
        model="books", prompt=prompts, temperature=0, max_tokens=4
    )
    for prompt, choice in zip(prompts, found.choices, strict=True):
        assert (choice.token_ids, choice.finish_reason) == wanted(prompt, 4)


def test_an_answer_ends_before_a_text_to_stop_at(letters):
    client = letters.client()
    full = (
        client.completions.create(model="books", prompt="bcd", temperature=0, max_tokens=8)
        .choices[0]
        .text
    )
    assert len(full) > 3
    stop = full[2:4]
    for stream in (False, True):
        asked = {
            "model": "books",
            "prompt": "bcd",
            "temperature": 0,
            "max_tokens": 8,
            "stop": [stop, "zz"],
        }
        found = client.completions.create(**asked, stream=stream)
        events = list(found) if stream else [found]
        assert "".join(e.choices[0].text for e in events) == full[: full.index(stop)]
        assert events[-1].choices[0].finish_reason == "stop"
    wait_until(letters.empty)


def test_fifty_requests_at_once_get_what_they_get_alone(served):
    prompts = [[n % VOCAB, (n * 7) % VOCAB, *range(n % 5)] for n in range(50)]
    client = served.client()

    def one(prompt):
        found = client.completions.create(model="books", prompt=prompt, temperature=0, max_tokens=5)
        return found.choices[0].token_ids, found.choices[0].finish_reason

    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(one, prompts))
    assert found == [wanted(prompt, 5) for prompt in prompts]
    wait_until(served.empty)


def test_a_stream_that_is_closed_frees_its_memory(served):
    served.pause = 0.05
    stream = served.client().completions.create(
        model="books", prompt=LONG, temperature=0, max_tokens=40, stream=True
    )
    next(stream)
    stream.close()
    wait_until(served.empty)
    assert len(served.server.engine.steps) < 40


def test_a_client_that_hangs_up_frees_its_memory(served):
    served.pause = 0.05
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=LIMIT_S)
    body = json.dumps({"model": "books", "prompt": LONG, "max_tokens": 40, "temperature": 0})
    connection.request("POST", "/v1/completions", body)
    wait_until(lambda: served.server.scheduler.held_tokens > 0)
    connection.close()
    wait_until(served.empty)
    assert len(served.server.engine.steps) < 40


BAD = [
    ({"prompt": [1]}, 404),
    ({"model": "other", "prompt": [1]}, 404),
    ({"model": "books"}, 400),
    ({"model": "books", "prompt": []}, 400),
    ({"model": "books", "prompt": ""}, 400),
    ({"model": "books", "prompt": [[]]}, 400),
    ({"model": "books", "prompt": [1, "a"]}, 400),
    ({"model": "books", "prompt": [True]}, 400),
    ({"model": "books", "prompt": {"a": 1}}, 400),
    ({"model": "books", "prompt": [[1]] * 129}, 400),
    ({"model": "books", "prompt": [VOCAB]}, 400),
    ({"model": "books", "prompt": [-1]}, 400),
    ({"model": "books", "prompt": [10**30]}, 400),
    ({"model": "books", "prompt": [1], "max_tokens": 0}, 400),
    ({"model": "books", "prompt": [1], "max_tokens": 1.5}, 400),
    ({"model": "books", "prompt": [1], "max_tokens": CAPACITY + 1}, 400),
    ({"model": "books", "prompt": [1], "max_tokens": 10**30}, 400),
    ({"model": "books", "prompt": [1], "temperature": 2.1}, 400),
    ({"model": "books", "prompt": [1], "n": 129}, 400),
    ({"model": "books", "prompt": [[1]] * 2, "n": 65}, 400),
    ({"model": "books", "prompt": [1], "best_of": 2}, 400),
    ({"model": "books", "prompt": [1], "logprobs": 21}, 400),
    ({"model": "books", "prompt": [1], "logprobs": True}, 400),
    ({"model": "books", "prompt": [1, VOCAB], "logprobs": 1, "echo": True}, 400),
    ({"model": "books", "prompt": [1], "max_tokens": CAPACITY + 1, "echo": True}, 400),
    ({"model": "books", "prompt": [1], "stop_token_ids": [1.5]}, 400),
    ({"model": "books", "prompt": [1], "min_p": 1.5}, 400),
    ({"model": "books", "prompt": [1], "top_k": -2}, 400),
    ({"model": "books", "prompt": [1], "min_tokens": 2}, 400),
    ({"model": "books", "prompt": [1], "stream": "yes"}, 400),
    ({"model": "books", "prompt": [1], "stream_options": {}}, 400),
    ({"model": "books", "prompt": [1], "stream": True, "stream_options": {"usage": True}}, 400),
    ({"model": "books", "prompt": [1], "stop": ["", "a"]}, 400),
    ({"model": "books", "prompt": [1], "stop": list("abcde")}, 400),
    ({"model": "books", "prompt": [1], "colour": "red"}, 400),
    ([1, 2], 400),
]


@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_get_the_right_status(letters, stream):
    for body, status in BAD:
        if stream and isinstance(body, dict) and "stream" not in body:
            body = {"stream": True, **body}
            if "stream_options" in body:
                continue
        found, answer = letters.ask("POST", "/v1/completions", json.dumps(body))
        assert found == status, body
        assert json.loads(answer)["error"]["message"]
    assert letters.empty()


def test_what_is_no_request_gets_the_right_status(letters):
    post = ("POST", "/v1/completions")
    assert letters.ask(*post, b"{")[0] == 400
    assert letters.ask(*post, b"\xff\xfe")[0] == 400
    assert letters.ask(*post, b"[" * 100_000)[0] == 400
    assert letters.ask(*post, b" " * ((8 << 20) + 1))[0] == 413
    assert letters.ask("GET", "/v1/completions")[0] == 405
    assert letters.ask("GET", "/v1/nothing")[0] == 404
    assert letters.ask("GET", "/v1/models/other")[0] == 404
    assert letters.ask("GET", "/health", Host="evil.example")[0] == 400
    assert letters.ask("GET", "/health")[0] == 200
    assert [m.id for m in letters.client().models.list()] == ["books"]
    assert letters.client().models.retrieve("books").owned_by == "meshc"


def test_an_iteration_that_fails_is_an_error_of_the_server_and_the_next_request_is_served(letters):
    body = json.dumps({"model": "books", "prompt": [1], "max_tokens": 3})
    letters.fails = True
    status, answer = letters.ask("POST", "/v1/completions", body)
    assert status == 500 and "on fire" in json.loads(answer)["error"]["message"]
    letters.fails = False
    assert letters.ask("POST", "/v1/completions", body)[0] == 200


@pytest.mark.models
def test_a_signal_lets_finish_what_runs():
    words = [str(TINY), "--mesh", "2x2", "--batch", "3", "--seq", "200", "--chunk", "16"]
    command = [sys.executable, "-m", "meshc", "serve", *words, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line.startswith("serving llama-3h1 on http://127.0.0.1:")
        import openai

        client = openai.OpenAI(
            base_url=line.split()[-1], api_key="none", max_retries=0, timeout=LIMIT_S
        )
        asked = {"model": "llama-3h1", "prompt": [1, 2, 3], "temperature": 0, "max_tokens": 150}
        alone = client.completions.create(**asked).choices[0].token_ids
        stream = client.completions.create(**asked, stream=True)
        events = [next(stream)]
        process.send_signal(signal.SIGTERM)
        events += list(stream)
        assert [token for event in events for token in event.choices[0].token_ids] == alone
        assert process.wait(LIMIT_S) == 0
        with pytest.raises(openai.APIConnectionError):
            client.completions.create(**asked)
    finally:
        process.kill()
        process.communicate()


def test_the_help_says_how_tokens_are_chosen(capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    said = re.search(r"drawn .* at temperature (\S+) and top_p (\S+) where it is silent", words)
    silent = asked(b'{"model": "books", "prompt": [1]}', "books", None, CAPACITY, 9).sampling
    assert silent == Sampling(temperature=float(said[1]), top_p=float(said[2]))
    assert silent != Sampling() and "greedy" not in words


@pytest.mark.models
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--port", "70000"], "bad-argument"),
        (["--finish-s", "-1"], "bad-argument"),
        (["--waiting", "-1"], "bad-argument"),
        (["--chunk", "16", "--long-chunk", "16"], "bad-argument"),
        (["--policy", "layered"], "dense-layered"),
        (["--policy", "disaggregated"], "bad-argument"),
    ],
)
def test_flags_that_make_no_sense_are_refused(capsys, words, code):
    assert main(["serve", str(TINY), "--mesh", "2x2", *words]) == 1
    assert f"error[{code}]" in capsys.readouterr().err


def test_the_port_is_tried_before_anything_is_read(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "no-such-model", "--port", str(taken.getsockname()[1])]) == 1
    found = capsys.readouterr().err
    assert "error[bad-argument]" in found and "cannot be had: Address already in use" in found


def test_without_the_extra_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "meshc.serving.endpoint.app", raising=False)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert main(["serve", str(TINY)]) == 1
    assert "pip install 'meshc[serve]'" in capsys.readouterr().err
