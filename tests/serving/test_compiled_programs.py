"""Programs that compile wrote to a directory, served: the tokens of ``meshc run`` of their model,
whichever way they read prompts, and words where they cannot come and go."""

import json
import urllib.request
from pathlib import Path

import pytest
from served import LIMIT_S
from serving_process import ServingProcess

from meshc.backends.cuda.executor import CXX
from meshc.cli import main

pytestmark = pytest.mark.models

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1"
TRACE = "arrival_s,prompt_tokens,output_tokens\n0,9,4\n0,3,6\n0.02,14,3\n0.05,1,5\n"
NO_COMPILER = pytest.mark.skipif(CXX.path() is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """Directories of compiled programs, each compiled once."""
    place, found = tmp_path_factory.mktemp("programs"), {}

    def compiled(*flags):
        if flags not in found:
            folder = place / str(len(found))
            words = ["--seq", "64", "-o", str(folder), "--weights", str(TINY), *flags]
            words += [] if "cuda" in flags else ["--mesh", "2x2"]
            assert main(["compile", str(TINY), *words]) == 0
            found[flags] = folder
        return found[flags]

    return compiled


@pytest.fixture
def serve(directories, tmp_path, capsys):
    """Serves a trace by a compiled program; stdout and stderr."""

    def run(compiled, *words, code=0):
        folder, trace = directories(*compiled), tmp_path / "trace.csv"
        trace.write_text(TRACE)
        capsys.readouterr()
        assert main(["serve-trace", str(folder), "--trace", str(trace), *words]) == code
        return capsys.readouterr()

    return run


def alone(capsys, ids, count, *words):
    """What ``meshc run`` gives behind ``ids``."""
    given = ["--prompt-ids", ",".join(map(str, ids)), "--max-tokens", str(count), "--ignore-eos"]
    capsys.readouterr()
    assert main(["run", str(TINY), *given, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["tokens"]


KEPT = ("--keep-quantised", "q4_0")
CHUNKS = ("--serving", "chunks", "--batch", "3", "--chunk", "8")
LAYERS = ("--serving", "layers!", "--batch", "3")


@pytest.mark.parametrize(
    ("compiled", "words", "batch", "longest"),
    [
        ((), (), 1, 14),
        (("--phase", "decode"), ("--chunk", "5"), 1, 5),
        (CHUNKS, (), 3, 8),
        (LAYERS, ("--policy", "combined", "--groups", "2", "--chunk", "6"), 3, 6),
        ((*KEPT, "--serving", "chunks", "--batch", "3"), ("--chunk", "6"), 3, 6),
    ],
    ids=["whole", "steps", "chunks", "layers", "quantised"],
)
def test_a_directory_serves_as_its_model_runs(serve, capsys, compiled, words, batch, longest):
    found = json.loads(serve(compiled, *words, "--json").out)
    read = [stop - start for own in found["iterations"] for _, start, stop in own["read"]]
    assert (found["batch"], max(read)) == (batch, longest)
    kept = KEPT if KEPT[0] in compiled else ()
    for own in found["requests"]:
        prompt, tokens = own["prompt_ids"], own["tokens"]
        assert tokens == alone(capsys, prompt, len(tokens), "--mesh", "2x2", *kept)


@pytest.mark.slow
@NO_COMPILER
def test_a_directory_for_gpus_serves_as_its_model_runs(serve, capsys):
    compiled = ("--target", "cuda", "--serving", "chunks", "--batch", "2")
    found = json.loads(serve(compiled, "--backend", "cuda-cpu", "--json").out)
    how = "--target", "cuda", "--backend", "cuda-cpu"
    for own in found["requests"][1:]:
        assert own["tokens"] == alone(capsys, own["prompt_ids"], len(own["tokens"]), *how)


@pytest.mark.every_case
@pytest.mark.parametrize(
    ("compiled", "words", "said"),
    [
        ((), ("--chunk", "16"), "reads prompts whole"),
        ((), ("--long-chunk", "16"), "reads prompts whole"),
        ((), ("--policy", "layered"), "pass all layers at once"),
        ((), ("--mesh", "3x3"), "--mesh says what to compile"),
        ((), ("--keep-quantised", "q8_0"), "--keep-quantised says what to compile"),
        ((), ("--cache-tokens", "64"), "--cache-tokens says what to compile"),
        ((), ("--force",), "--force says what to compile"),
        ((), ("--target", "cuda"), "--target says what to compile"),
        ((), ("--weights", "nowhere"), "nowhere"),
        (("--batch", "2"), (), "2 requests together"),
        (CHUNKS, ("--chunk", "16"), "at most 8 tokens"),
        (CHUNKS, ("--policy", "layered"), "pass all layers at once"),
        (CHUNKS, ("--compare-alone",), "no room for whole prompts"),
        (("--target", "csl", "--phase", "decode"), (), "do not serve yet"),
    ],
)
def test_programs_that_do_not_serve_so_are_refused(serve, compiled, words, said):
    assert said in serve(compiled, *words, code=1).err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--target", "csl", "--serving", "chunks"), "bad-argument"),
        (("--serving", "fast"), "bad-argument"),
        (("--serving", "layers"), "dense-layered"),
        (("--serving", "layers", "--target", "cuda"), "dense-layered"),
        (("--serving", "chunks", "--target", "cuda", "--chunk", "64"), "bad-argument"),
        (("--serving", "chunks", "--target", "cuda", "--gpus", "2"), "bad-argument"),
        (("--serving", "chunks", "--target", "cuda", "--standalone", "-o", "x"), "bad-argument"),
        (("--serving", "chunks", "--chunk", "8", *KEPT), "bad-argument"),
    ],
)
def test_programs_that_would_not_serve_are_not_compiled(words, code, capsys):
    assert main(["compile", str(TINY), *words]) == 1
    assert f"error[{code}]" in capsys.readouterr().err


@NO_COMPILER
def test_a_graph_that_serves_says_nothing_of_caches_on_cores(tmp_path, capsys):
    """Kept rows are a policy of caches on cores, which nobody named for a graph."""
    folder = tmp_path / "graph"
    words = ["--serving", "chunks", "--compile-to", "graph", "-o", str(folder)]
    assert main(["compile", str(TINY), *words]) == 0
    assert "graph level" in capsys.readouterr().out
    assert "policy" not in (folder / "decode.meshir").read_text(encoding="utf-8")
    assert main(["compile", str(TINY), *words, "--kv", "cyclic", "--force"]) == 1
    assert "--kv is cyclic" in capsys.readouterr().err


def test_what_has_its_pages_from_a_server_is_not_run(directories, capsys):
    folder = directories("--target", "cuda", "--serving", "chunks", "--batch", "2")
    assert main(["run", str(folder), "--backend", "cuda-cpu", "--prompt-ids", "5"]) == 1
    assert "compiled to serve" in capsys.readouterr().err


def test_a_program_that_serves_runs_too_its_prompts_by_chunks(directories, capsys):
    ids = list(range(5, 27))
    folder = directories(*CHUNKS)
    capsys.readouterr()
    given = ["--prompt-ids", ",".join(map(str, ids)), "--max-tokens", "6", "--ignore-eos"]
    assert main(["run", str(folder), *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["tokens"]
    assert found == alone(capsys, ids, 6, "--mesh", "2x2")


@pytest.mark.parametrize(
    "change",
    [{"prompts": "pages"}, {"rows_stay": 1}, {"layer_costs": [0.0]}, {"layer_costs": "1"}],
)
def test_a_manifest_that_somebody_changed_is_refused(directories, tmp_path, capsys, change):
    manifest = json.loads((directories(*CHUNKS) / "meshc.json").read_text())
    manifest["serving"] |= change
    (tmp_path / "meshc.json").write_text(json.dumps(manifest))
    assert main(["run", str(tmp_path), "--prompt-ids", "5"]) == 1
    assert "no sound 'serving'" in capsys.readouterr().err


@pytest.mark.serve
def test_the_endpoint_of_a_directory_answers_and_keeps_prefixes(directories, capsys):
    prompt = list(range(5, 25))
    with ServingProcess(directories(*CHUNKS), compiled=True) as server:
        given = {"model": server.name, "prompt": prompt, "max_tokens": 5, "temperature": 0}
        body = json.dumps(given | {"ignore_eos": True}).encode()
        head = {"Content-Type": "application/json"}
        asked = urllib.request.Request(server.address + "/completions", body, head)
        answers = []
        for _ in range(2):
            with urllib.request.urlopen(asked, timeout=LIMIT_S) as got:
                answers.append(json.load(got))
    wanted = alone(capsys, prompt, 5, "--mesh", "2x2")
    assert [found["choices"][0]["token_ids"] for found in answers] == [wanted, wanted]
    assert answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
