"""A directory of --standalone runs where there is numpy and a driver alone, in Python and from C++:
here over a stand-in for the driver whose kernels run in the executor. Its tokens are those of
Hugging Face transformers."""

import json
import os
import subprocess
import venv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from fake_driver import C
from reduced import only
from stand_in import stand_in

from meshc.backends.cuda.executor import CXX
from meshc.cli import main
from meshc.support.output import read_manifest

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "data" / "tiny_cuda"
PROGRAMS = {
    "one kernel a step": ("llama-4h2", {}),
    "clusters": ("llama-4h2", {"cluster": 4, "page": 64}),
    "prompts by kernels": ("llama-4h2", {"chunk": 8}),
    "several requests": ("qwen2-2h1-bf16", {"batch": 3}),
    "latent attention": ("deepseek-4h", {"page": 1}),
}

pytestmark = [
    pytest.mark.cuda_compiler,
    pytest.mark.skipif(C.path() is None or CXX.path() is None, reason="there is no C++ compiler"),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """``compiled(name)``: the directory of a program, a folder with its driver, and its example."""

    @cache
    def of(name):
        folder = tmp_path_factory.mktemp("program")
        model, options = PROGRAMS[name]
        words = [w for option, value in options.items() for w in (f"--{option}", str(value))]
        out = folder / "out"
        command = ["compile", str(TINY / model), "--target", "cuda", "--seq", "40", *words]
        assert main([*command, "--standalone", "-o", str(out)]) == 0
        return out, stand_in(out, folder / "driver"), built(out, folder)

    return of


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python that has numpy alone."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    source = Path(np.__file__).parent
    for part in (source, source.with_name("numpy.libs")):
        if part.exists():
            (packages / part.name).symlink_to(part)
    found = str(folder / "bin" / "python")
    assert run([found, "-c", "import numpy"]).returncode == 0
    assert "No module named 'meshc'" in run([found, "-c", "import meshc"]).stderr
    return found


def run(command, driver=None, **variables):
    """A process that knows nothing of this one's environment and folder."""
    known = {"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1", **variables}
    if driver is not None:
        known["LD_LIBRARY_PATH"] = str(driver)
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=known, cwd=os.sep
    )


def built(out, folder, source="example.cc"):
    """The example, or another ``source``, in C++."""
    found = folder / Path(source).stem
    command = [CXX.path(), "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", ".", source, "-ldl"]
    done = subprocess.run(
        [*command, "-o", str(found)], cwd=out, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return str(found)


def line(tokens):
    return ",".join(map(str, tokens)) + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", only(PROGRAMS, "one kernel a step"))
def test_tokens_are_those_of_transformers(name, compiled, python):
    out, driver, example = compiled(name)
    wanted = json.loads((TINY / PROGRAMS[name][0] / "expected.json").read_text())
    ids, count = ",".join(map(str, wanted["prompt_ids"])), str(len(wanted["tokens"]))
    asked = [python, str(out / "run.py"), "--max-tokens", count, "--ignore-eos"]
    done = run([*asked, "--prompt-ids", ids], driver)
    assert (done.stdout, done.stderr) == (line(wanted["tokens"]), "")
    done = run([example, str(out), ids, count], driver)
    assert (done.stdout, done.stderr) == (line(wanted["tokens"]), "")
    batch = PROGRAMS[name][1].get("batch", 1)
    if batch > 1:  # a prompt beside others is continued as it is alone
        other = "7,3,9"
        alone = run([*asked, "--prompt-ids", other], driver).stdout
        done = run([*asked, "--prompt-ids", other, "--prompt-ids", ids], driver)
        assert done.stdout == alone + line(wanted["tokens"])


PROMPTS_AT_ONCE = """
#include <algorithm>
#include <cstdio>

#include "model.hpp"

static int likeliest(const float* row) {
  return int(std::max_element(row, row + meshc_model::VOCABULARY) - row);
}

int main(int, char** words) {
  meshc_model::Model model(words[1]);
  const std::vector<std::vector<int>> prompts = {{7, 3, 9}, {5, 17, 42, 6}};
  meshc_model::Sampling drawn;
  drawn.temperature = 2, drawn.top_k = 30, drawn.top_p = 0.9, drawn.min_p = 0.01;
  drawn.seed = 1ull << 63;
  for (const auto& one : model.generate_all(prompts, 5, {}, drawn, 3)) {
    for (int token : one) std::printf("%d,", token);
    std::printf("\\n");
  }
  std::vector<int> tokens(meshc_model::BATCH), cached(meshc_model::BATCH);
  for (int place = 0; place < 2; ++place) {
    tokens[place] = likeliest(model.prefill(prompts[place], place, cached).data());
    cached[place] = int(prompts[place].size());
  }
  const auto rows = model.step(tokens, cached);
  for (int place = 0; place < 2; ++place) {
    const int behind = likeliest(rows.data() + place * meshc_model::VOCABULARY);
    std::printf("%d,%d,\\n", tokens[place], behind);
  }
}
"""
"""Drawn tokens of two prompts, and the two most likely ones by the calls that give logits."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["several requests"])
def test_all_calls_of_the_header_give_the_tokens_of_run_py(name, compiled, python, tmp_path):
    out, driver, _ = compiled(name)
    (tmp_path / "calls.cc").write_text(PROMPTS_AT_ONCE)
    asked = [python, str(out / "run.py"), "--ignore-eos", "--prompt-ids", "7,3,9"]
    asked += ["--prompt-ids", "5,17,42,6", "--max-tokens"]
    how = ["--temperature", "2", "--top-k", "30", "--top-p", "0.9", "--min-p", "0.01"]
    drawn = run([*asked, "5", *how, "--steps", "2", "--seed", str(1 << 63)], driver)
    likely = run([*asked, "2"], driver)
    found = run([built(out, tmp_path, str(tmp_path / "calls.cc")), str(out)], driver)
    assert [drawn.stderr, likely.stderr, found.stderr] == ["", "", ""]
    assert found.stdout.replace(",\n", "\n") == drawn.stdout + likely.stdout


@pytest.fixture
def small(compiled):
    """A directory with its driver and example."""
    return compiled("one kernel a step")


@pytest.mark.parametrize("steps", only([1, 3, 16], 3))
def test_draws_are_those_of_meshc(steps, small, python, capsys, tmp_path):
    """Which draws by the logits of its executor, in NumPy."""
    out, driver, example = small
    asked = ["--prompt-ids", "5,17,42", "--max-tokens", "4", "--seed", "7"]
    hot, cut = ["--temperature", "2"], ["--top-k", "9", "--top-p", "0.9", "--min-p", "0.05"]
    here = [python, str(out / "run.py"), *asked, *cut, "--steps", str(steps)]
    for more, command in ((hot, [example, str(out), "5,17,42", "4", "2", "7"]), (cut, here)):
        model = ["run", str(TINY / "llama-4h2"), "--target", "cuda", "--backend", "cuda-cpu"]
        capsys.readouterr()
        assert main([*model, *asked, *more, "--logits", str(tmp_path / "logits.npy")]) == 0
        done = run(command, driver)
        assert (done.stdout, done.stderr) == (capsys.readouterr().out, "")
        likeliest = np.load(tmp_path / "logits.npy").argmax(-1)
        assert done.stdout != line(likeliest)


def test_a_text_ends_at_its_last_token(small, tmp_path, python):
    out, driver, _ = small
    asked = [python, str(out / "run.py"), "--prompt-ids", "5,17,42", "--max-tokens", "6"]
    tokens = run([*asked, "--ignore-eos"], driver).stdout.strip().split(",")
    text = (out / "run.py").read_text()
    (stop,) = [row for row in text.splitlines() if row.startswith("STOP = ")]
    for path in out.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "run.py").write_text(text.replace(stop, f"STOP = ({tokens[2]},)"))
    asked[1] = str(tmp_path / "run.py")
    first = tokens.index(tokens[2]) + 1
    assert run(asked, driver).stdout.strip().split(",") == tokens[:first]


REFUSALS = {
    "no driver": ({}, None, "NVIDIA's driver is not installed"),
    "another GPU": ({"FAKE_DRIVER_SET": "major=8"}, "5", "no GPU has the compute capability 9.0"),
    "little memory": ({"FAKE_DRIVER_SET": "memory=65536"}, "5", "cuMemAlloc_v2 failed"),
    "few blocks": ({"FAKE_DRIVER_SET": "blocks=0"}, "5", "blocks of"),
    "a fault": ({"FAKE_DRIVER_FAIL": "cuStreamSynchronize=700"}, "5", "cuStreamSynchronize failed"),
    "an unknown token": ({}, "100000", "token id"),
    "a long prompt": ({}, ",".join(["5"] * 40), "do not fit a cache of 40"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_is_wrong_is_said_and_the_exit_is_1(what, small, python):
    out, driver, example = small
    variables, ids, words = REFUSALS[what]
    for command in (
        [python, str(out / "run.py"), "--prompt-ids", ids or "5", "--max-tokens", "2"],
        [example, str(out), ids or "5", "2"],
    ):
        done = run(command, None if ids is None else driver, **variables)
        assert done.returncode == 1 and words in done.stderr
        assert "Traceback" not in done.stderr and done.stdout == ""


def test_what_is_no_number_is_refused(small, python):
    out, driver, example = small
    for ids, count in (("5,x", "2"), ("5", "2x")):
        done = run([example, str(out), ids, count], driver)
        assert done.returncode == 1 and "is no number here" in done.stderr
    for words in (["--temperature", "nan"], ["--top-p", "2"], ["--seed", "1"], ["--steps", "65"]):
        done = run([python, str(out / "run.py"), "--prompt-ids", "5", *words], driver)
        assert done.returncode == 1 and done.stderr.startswith("run.py: ") and not done.stdout


def test_logits_that_are_no_numbers_give_no_tokens(small, tmp_path, python):
    out, driver, example = small
    for path in out.iterdir():
        data = path.read_bytes()
        words = b"\xff\x7f" * (len(data) // 2)  # no number in f16 and bf16
        (tmp_path / path.name).write_bytes(words if path.suffix == ".packed" else data)
    for command in (
        [python, str(tmp_path / "run.py"), "--prompt-ids", "5", "--max-tokens", "1"],
        [example, str(tmp_path), "5", "1"],
    ):
        done = run(command, driver)
        assert done.returncode == 1 and "no largest number that is finite" in done.stderr
        assert done.stdout == ""


def test_files_that_are_cut_are_refused(small, tmp_path, python):
    out, driver, example = small
    for path in out.iterdir():
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data[:-5000] if path.suffix == ".packed" else data)
    for command in (
        [python, str(tmp_path / "run.py"), "--prompt-ids", "5"],
        [example, str(tmp_path), "5", "2"],
    ):
        done = run(command, driver)
        assert done.returncode == 1 and "ends inside weight" in done.stderr


def test_the_directory_runs_with_meshc_too(small, capsys):
    out, _, _ = small
    assert read_manifest(out)["target"] == "cuda"
    asked = ["run", str(out), "--prompt-ids", "5,17,42", "--max-tokens", "2", "--backend"]
    capsys.readouterr()
    assert main([*asked, "cuda-cpu", "--weights", str(TINY / "llama-4h2")]) == 0
    assert capsys.readouterr().out.count(",") == 1


WRONG = {
    "another target": ["--target", "python", "-o", "out"],
    "no directory": ["--target", "cuda"],
    "IR": ["--target", "cuda", "--compile-to", "graph", "-o", "out"],
    "several GPUs": ["--target", "cuda", "--gpus", "2", "-o", "out"],
}


@pytest.mark.parametrize("what", WRONG)
def test_what_has_no_such_directory_is_refused(what, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = str(TINY / "llama-4h2")
    assert main(["compile", model, *WRONG[what], "--standalone"]) == 1
    assert "error[bad-argument]: --standalone writes" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_weights_that_nobody_names_are_asked_for(tmp_path, capsys):
    (tmp_path / "config.json").write_text((TINY / "llama-4h2" / "config.json").read_text())
    words = ["--target", "cuda", "--standalone", "-o", str(tmp_path / "out")]
    assert main(["compile", str(tmp_path / "config.json"), *words]) == 1
    assert "error[weights-not-found]" in capsys.readouterr().err
