"""What a server says of its requests: measures for Prometheus, and a log."""

import io
import json
import os
import threading

import pytest
from books import server_of
from served import EOS, LONG, Letters, Served, wait_until

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from meshc.cli.entry import main
from meshc.serving.loop import Loop
from meshc.serving.policies import policy
from meshc.serving.request_log import RequestLog
from meshc.serving.server_watchers import Course, Ended


def measured(served):
    """Values of ``/metrics`` by the name of a sample, and those of requests by their reason."""
    status, body = served.ask("GET", "/metrics")
    assert status == 200
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            assert sample.labels["model"] == "books"
            if "le" not in sample.labels and not sample.name.endswith("_created"):
                name = sample.name.removeprefix("meshc_")
                found[sample.labels.get("reason", name)] = sample.value
    return found


def completed(served, **settings):
    asked = {"model": "books", "prompt": LONG, "temperature": 0, "max_tokens": 5, **settings}
    return served.ask("POST", "/v1/completions", json.dumps(asked))


def test_measures_count_what_happened():
    with Served(Letters()) as served:
        before = measured(served)
        assert before["generated_tokens_total"] == before["length"] == before["error"] == 0
        assert completed(served)[0] == 200
        text = json.loads(completed(served, max_tokens=20)[1])["choices"][0]["text"]
        stopped = json.loads(completed(served, max_tokens=20, stop=text[3])[1])
        assert stopped["choices"][0]["finish_reason"] == "stop"
        wait_until(lambda: measured(served)["requests_decoding"] == 0)
        after = measured(served)
        assert after["length"] == 2 and after["stop"] == 1 and after["cancelled"] == 0
        assert after["prompt_tokens_total"] == 3 * len(LONG)
        assert after["generated_tokens_total"] >= 5 + 20 + text.index(text[3]) + 1
        assert after["time_to_first_token_seconds_count"] == after["request_seconds_count"] == 3
        between = after["generated_tokens_total"] - 3
        assert after["time_between_tokens_seconds_count"] == between
        assert after["requests_waiting"] == 0
        assert after["cache_tokens"] > 0


def test_who_hangs_up_and_who_fails_is_counted():
    with Served(Letters()) as served:
        served.steps = threading.Semaphore(1)  # so that the answer does not end before it is left
        connection = served.begun(
            {"model": "books", "prompt": LONG, "max_tokens": 40, "temperature": 0}
        )
        wait_until(lambda: served.server.scheduler.decoding)
        connection.close()
        wait_until(lambda: measured(served)["cancelled"] == 1)
        served.fails = True
        served.steps.release(100)
        assert completed(served)[0] == 500
        assert measured(served)["error"] == 1


def test_courses_time_tokens_by_their_clock():
    times, heard = iter([1.0, 3.0, 3.5, 7.0]), []

    class Watcher:
        def token(self, seconds, is_first):
            heard.append((seconds, is_first))

        def ended(self, request):
            heard.append(request)

    course = Course(4, 9, (Watcher(),), lambda: next(times))
    course.token()
    course.token()
    course.end("error", "no numbers")
    assert heard == [(2.0, True), (0.5, False), Ended(4, 9, 2, "error", 6.0, 2.0, "no numbers")]


def test_a_log_has_a_line_for_each_request():
    stream = io.BytesIO()
    loop = Loop(server_of(policy("chunked", 8)), watchers=[RequestLog(stream)])
    ended = []
    loop.start()
    for most in (3, 6):
        loop.submit(LONG, most, EOS, lambda news: ended.append(1) if news.reason else None)
    wait_until(lambda: len(ended) == 2)
    assert loop.close(60)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert sorted((line["request"], line["tokens"]) for line in lines) == [(0, 3), (1, 6)]
    for line in lines:
        assert line["prompt_tokens"] == len(LONG) and line["reason"] == "length"
        assert 0 <= line["first_token_s"] <= line["seconds"] and "error" not in line


def test_a_log_that_takes_nothing_more_ends_alone():
    with open("/dev/full", "wb", buffering=0) as stream:
        log = RequestLog(stream)
        log.ended(Ended(0, 1, 1, "stop", 1.0, 1.0))
    log.ended(Ended(1, 1, 1, "stop", 1.0, 1.0))


@pytest.mark.parametrize("kind", ["folder", "pipe", "absent folder"])
def test_a_place_that_cannot_be_written_is_refused_before_compiling(kind, tmp_path, capsys):
    place = tmp_path / "log"
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place = place / "deeper"
    command = ["serve", "smollm2-135m", "--port", "0", "--request-log", str(place)]
    assert main(command) == 1
    assert "error[unwritable]" in capsys.readouterr().err
