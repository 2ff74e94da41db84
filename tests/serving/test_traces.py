"""Traces from outside: what is read, and what is refused in words."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshc.serving import traces
from meshc.serving.lengths import Trace
from meshc.serving.traces import read_trace
from meshc.support.diagnostics import MeshcError

HEAD = "prompt_tokens,output_tokens\n"


def read(tmp_path, text):
    path = tmp_path / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path)


def test_names_of_columns(tmp_path):
    assert read(tmp_path, HEAD + "5,6\n\n7,8\n") == Trace(((5, 6), (7, 8)))
    vidur = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n74,918,992,0.08\n"
    assert read(tmp_path, vidur).pairs == ((74, 918),)
    timed = "arrival_s, prompt_tokens ,output_tokens\n1.5,3,4\n1.5,3,4\n"
    assert read(tmp_path, timed).seconds == (1.5, 1.5)


def test_columns_of_azure(tmp_path):
    """Times behind the first row, whatever day it is; with zones as without."""
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    code = head + "2023-11-16 18:15:46.6805900,4808,10\n2023-11-16 18:16:50.9951690,3180,8\n"
    found = read(tmp_path, code)
    assert found.pairs == ((4808, 10), (3180, 8))
    assert found.seconds == pytest.approx((0, 64.314579), abs=1e-5)
    zones = (
        "2024-05-10 23:59:59.5+00:00,1,1\n2024-05-11T02:00:00Z,1,1\n2024-05-11 04:00:00+02:00,1,1"
    )
    assert read(tmp_path, head + zones).seconds == (0, 7200.5, 7200.5)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no column of prompt_tokens"),
        (HEAD, "has no requests"),
        ("prompt_tokens\n4\n", "no column of output_tokens"),
        ("prompt_tokens,input_tokens,output_tokens\n1,1,1\n", "several columns of prompt_tokens"),
        (HEAD + "-5,6\n", "line 2: prompt_tokens is '-5'"),
        (HEAD + "5,0\n", "output_tokens is '0'"),
        (HEAD + "5,6\nnan,6\n", "line 3: prompt_tokens is 'nan'"),
        (HEAD + "5,inf\n", "output_tokens is 'inf'"),
        (HEAD + "5.5,6\n", "'5.5', not a whole number"),
        (HEAD + "5,\n", "output_tokens is ''"),
        (HEAD + "5\n", "1 columns where the header has 2"),
        (HEAD + "1" * 5000 + ",2\n", "not a whole number from 1"),
        (HEAD + "99999999,2\n", "not a whole number from 1 to 10000000"),
        (HEAD + "\u0665,2\n", "not a whole number"),
        ("arrival_s," + HEAD + "nan,1,1\n", "arrival_s is 'nan'"),
        ("arrival_s," + HEAD + "2,1,1\n1,1,1\n", "earlier than in the row before"),
        ("arrival_s," + HEAD + "1e300,1,1\n", "not a number of seconds"),
        (
            "arrival_s,TIMESTAMP," + HEAD + "1,2023-11-16 18:15:46,1,1\n",
            "several columns of arrival_s",
        ),
        ("TIMESTAMP," + HEAD + "12.5,1,1\n", "TIMESTAMP is '12.5', not a date and time of day"),
        ("TIMESTAMP," + HEAD + "2023-02-30 18:15:46,1,1\n", "not a date and time of day"),
        ("TIMESTAMP," + HEAD + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n", "earlier"),
        (HEAD + '"' + "x" * 200_000 + '",1\n', "field larger than field limit"),
    ],
)
def test_malformed_traces_are_refused(tmp_path, text, words):
    with pytest.raises(MeshcError) as caught:
        read(tmp_path, text)
    (error,) = caught.value.diagnostics
    assert error.code == "trace-invalid" and words in error.message


def test_rows_without_end_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MAX_ROWS", 3)
    with pytest.raises(MeshcError, match="more than 3 rows"):
        read(tmp_path, HEAD + "1,1\n" * 4)


def test_files_without_end_are_refused(tmp_path, monkeypatch):
    with open(tmp_path / "sparse.csv", "wb") as stream:
        stream.truncate(10**10)
    with pytest.raises(MeshcError, match="unreadable"):
        read_trace(tmp_path / "sparse.csv")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    with pytest.raises(MeshcError, match="no UTF-8"):
        read(tmp_path, b"\xff\xfe\x00")


CELLS = st.one_of(
    st.integers(-3, 10**8).map(str), st.floats().map(str), st.text(max_size=4), st.just('"')
)


@given(rows=st.lists(st.lists(CELLS, max_size=4), max_size=5), timed=st.booleans())
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_text_is_a_trace_or_refused(tmp_path, rows, timed):
    text = ("arrival_s," if timed else "") + HEAD + "\n".join(",".join(row) for row in rows)
    try:
        found = read(tmp_path, text.encode("utf-8", "surrogatepass"))
    except MeshcError as error:
        assert {d.code for d in error.diagnostics} <= {"trace-invalid", "unreadable"}
    else:
        assert found.pairs and all(min(pair) >= 1 for pair in found.pairs)


def test_prefixes_of_requests(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("prompt_tokens,output_tokens,prefix,prefix_tokens\n9,2,talk,11\n5,1,,\n")
    assert read_trace(path).prefixes == (("talk", 11), ("", 0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prompt_tokens,output_tokens,prefix\n9,2,talk\n", "no column of prefix_tokens"),
        ("prompt_tokens,output_tokens,prefix_tokens\n9,2,3\n", "no column of prefix"),
        ("prompt_tokens,output_tokens,prefix,prefix_tokens\n9,2,,3\n", "prefix is empty"),
        ("prompt_tokens,output_tokens,prefix,prefix_tokens\n9,2,a,\n", "not a whole number"),
        ("prompt_tokens,output_tokens,prefix,prefix_tokens\n9,2,a,0\n", "not a whole number"),
    ],
)
def test_prefixes_that_are_wrong(tmp_path, text, said):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(MeshcError, match=said):
        read_trace(path)
