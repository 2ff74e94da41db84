"""Who is answered: keys and addresses; and counting tokens."""

import json

import pytest
from books import CAPACITY
from served import LONG, Letters, Served

pytest.importorskip("starlette")

from meshc.cli.entry import main
from meshc.serving.endpoint.access import Access

ASKED = json.dumps({"model": "books", "prompt": [1], "max_tokens": 1})


@pytest.fixture(scope="module")
def letters():
    with Served(Letters()) as found:
        yield found


@pytest.fixture(scope="module")
def locked():
    with Served(Letters(), access=Access("0.0.0.0", "s3cret")) as found:
        yield found


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer s3cret"}, 200),
        ({"Authorization": "Bearer s3cret", "Host": "wafer.example:8000"}, 200),
        ({"Authorization": "Bearer s3cre"}, 401),
        ({"Authorization": "bearer s3cret"}, 401),
        ({"Authorization": "s3cret"}, 401),
        ({"Authorization": "Bearer \xff"}, 401),
        ({}, 401),
    ],
)
def test_a_key_is_wanted(locked, headers, status):
    found, body = locked.ask("POST", "/v1/completions", ASKED, **headers)
    assert found == status
    if status == 401:
        error = json.loads(body)["error"]
        assert error["code"] == "invalid_api_key" and "key" in error["message"]
        assert locked.ask("GET", "/v1/models", **headers)[0] == 401
    assert locked.ask("GET", "/health")[0] == 200


def test_without_a_key_other_names_are_refused(letters):
    assert letters.ask("POST", "/v1/completions", ASKED)[0] == 200
    assert letters.ask("POST", "/v1/completions", ASKED, Host="wafer.example")[0] == 400


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("192.0.2.7", False), ("wafer.example", False)],
)  # fmt: skip
def test_addresses_of_this_machine_alone(host, is_local):
    assert Access(host).is_local == is_local


def test_an_address_that_others_reach_needs_a_key(capsys, monkeypatch):
    monkeypatch.delenv("MESHC_API_KEY", raising=False)
    assert main(["serve", "no-such-model", "--host", "0.0.0.0"]) == 1
    assert "there is no key" in capsys.readouterr().err
    assert main(["serve", "no-such-model", "--api-key", " "]) == 1
    assert "--api-key is empty" in capsys.readouterr().err


def test_tokens_are_counted_and_spelled(letters):
    status, body = letters.ask("POST", "/tokenize", json.dumps({"prompt": "bcd"}))
    assert status == 200
    assert json.loads(body) == {"count": 3, "max_model_len": CAPACITY, "tokens": [1, 2, 3]}
    asked = {"model": "books", "messages": [{"role": "user", "content": "bc"}]}
    assert json.loads(letters.ask("POST", "/tokenize", json.dumps(asked))[1])["tokens"] == [1, 2]
    status, body = letters.ask("POST", "/detokenize", json.dumps({"tokens": [1, 2, 3]}))
    assert (status, json.loads(body)) == (200, {"prompt": "bcd"})
    assert json.loads(letters.ask("POST", "/detokenize", '{"tokens": []}')[1]) == {"prompt": ""}


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": []}),
        ("/tokenize", {"prompt": "a", "add_special_tokens": False}),
        ("/tokenize", {"prompt": "a", "colour": 1}),
        ("/detokenize", {"tokens": "a"}),
        ("/detokenize", {"tokens": [1.5]}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {}),
    ],
)
def test_what_cannot_be_counted_is_refused(letters, path, asked):
    assert letters.ask("POST", path, json.dumps(asked))[0] == 400
    assert letters.ask("POST", path, json.dumps({"model": "other", **asked}))[0] == 404


def test_answers_of_a_locked_server_are_the_same(letters, locked):
    asked = json.dumps({"model": "books", "prompt": LONG, "max_tokens": 9, "temperature": 0})
    key = {"Authorization": "Bearer s3cret"}
    found = [
        json.loads(one.ask("POST", "/v1/completions", asked, **how)[1])["choices"]
        for one, how in ((letters, {}), (locked, key))
    ]
    assert found[0] == found[1]
