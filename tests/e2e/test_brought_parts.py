"""What other packages bring: the packages of ``examples/`` pass their tests, and what is wrong with
a form, a family, a device or a function of elements is said of its package."""

import json
import shlex
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from csl_runs import run_files
from installed_examples import installed
from offered import offer
from reduced import only

import meshc
from meshc.backends import registry
from meshc.cli import main
from meshc.devices import catalogue as devices
from meshc.driver import load_any
from meshc.driver.emitted import emitted_once
from meshc.frontend.families import family
from meshc.ir import brought_functions as functions
from meshc.passes import brought_passes
from meshc.passes.mesh.forms import brought

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = {
    "own_device": ("meshc.devices", "pocket", "own_device:POCKET"),
    "own_family": ("meshc.families", "glm", "own_family:FOLDER"),
    "own_function": ("meshc.functions", "softsign", "own_function.softsign:SOFTSIGN"),
    "own_pass": ("meshc.passes", "sink-scales", "own_pass.sink_scales:SinkScales"),
    "one_core_c": ("meshc.targets", "one-core-c", "one_core_c.target:TARGET"),
    "own_form": ("meshc.forms", "gathered", "own_form.gathered:GATHERED"),
}


@pytest.fixture
def bring(monkeypatch, tmp_path):
    """Offers an object as ``name`` in a group: that of an example, or of a module with a text."""

    def brought(group, name, value, text=""):
        monkeypatch.syspath_prepend(str(EXAMPLES / value.partition(":")[0].partition(".")[0]))
        monkeypatch.syspath_prepend(str(tmp_path))
        module = value.partition(":")[0]
        if text:
            (tmp_path / f"{module}.py").write_text(text)
            sys.modules.pop(module, None)
        offer(monkeypatch, group, (name, value))

    return brought


@pytest.mark.parametrize("package", only(sorted(PACKAGES), "own_function"))
def test_the_tests_of_an_example_pass(bring, package):
    """With what its own pyproject.toml offers."""
    group, name, value = PACKAGES[package]
    said = (EXAMPLES / package / "pyproject.toml").read_text()
    assert f'[project.entry-points."{group}"]\n' in said and f'{name} = "{value}"\n' in said
    bring(group, name, value)
    folder = str(EXAMPLES / package / "tests")
    assert pytest.main(["-q", "-p", "no:cacheprovider", "-n0", folder]) == 0


NORMED = """model normed(K=12, N=6) {
  weights f32  accumulate f32
  param gain[K], w[K, N]
  main(x[K]) -> [N] {
    h = rms_norm(x, gain, eps = 1e-5)
    return h @ w
  }
}"""


def test_a_brought_form_is_part_of_a_compile(bring, tmp_path):
    bring(*PACKAGES["own_form"])
    path = tmp_path / "normed.mesh"
    path.write_text(NORMED)
    random = np.random.default_rng(5)
    x, w = random.standard_normal(12), random.standard_normal((12, 6))
    usual, pinned = (
        meshc.compile(path, mesh="3x2", **asked) for asked in ({}, {"form": ("h=gathered",)})
    )
    assert usual.files["main_phase.py"] != pinned.files["main_phase.py"]
    found = pinned.load({"gain": np.ones(12), "w": w}).run({"x": x})["result"]
    np.testing.assert_allclose(found, x / np.sqrt(np.mean(x**2) + 1e-5) @ w, rtol=1e-5, atol=1e-5)
    with pytest.raises(meshc.MeshcError, match="there is no 'g' whose form could be pinned"):
        meshc.compile(path, mesh="3x2", form=("g=gathered",))
    with pytest.raises(meshc.MeshcError, match="--form cannot be 'h:gathered'"):
        meshc.compile(path, mesh="3x2", form=("h:gathered",))


@pytest.mark.slow
@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_an_installed_example_passes_its_tests(package, tmp_path):
    done = installed(package, tmp_path)("-m", "pytest", "-q", "-p", "no:cacheprovider", "source")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_kind_has_an_example():
    kinds = [
        devices.KIND,
        family.KIND,
        brought.KIND,
        brought_passes.KIND,
        registry.KIND,
        functions.KIND,
    ]
    assert {kind.group for kind in kinds} == {group for group, _, _ in PACKAGES.values()}
    page = (EXAMPLES.parent / "docs" / "packages.md").read_text()
    for package, (group, _, _) in PACKAGES.items():
        assert f"| `{group}` | " in page and f"`examples/{package}`" in page
    assert all((EXAMPLES.parent / kind.page).is_file() for kind in kinds)


@pytest.mark.cuda_compiler
def test_a_brought_function_is_part_of_a_decode_step_in_cuda(bring, tmp_path):
    """Its logits are those of the Python program of the same model."""
    bring(*PACKAGES["own_function"])
    text = (EXAMPLES / "tiny_llama.mesh").read_text()
    mlp = "llama_mlp(x, ffn_norm, w_gate, w_up, w_down, eps)"
    own = "x + (softsign(h @ w_gate, width = 0.5) * (h @ w_up)) @ w_down"
    text = text.replace(f"x = {mlp}", f"h = rms_norm(x, ffn_norm, eps)\n      x = {own}")
    path = tmp_path / "signed.mesh"
    path.write_text(text)
    python = meshc.compile(path, mesh="2x2", phase="decode", seq=16)
    weights = drawn(meshc.compile(path, phase="decode", seq=16, compile_to="graph"))
    answers = []
    cuda = meshc.compile(path, target="cuda", device="h100", phase="decode", seq=16)
    assert "MC_INLINE float softsign" in cuda.files["step.cu"]
    for program in (python.load(weights), cuda.load(weights, backend="cuda-cpu")):
        answers.append(program.generate([5, 17, 42], 3, ignore_eos=True))
    assert answers[0].tokens == answers[1].tokens
    np.testing.assert_allclose(answers[1].logits, answers[0].logits, rtol=0, atol=5e-3)


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [("f32", 1e-5), ("f16", 1e-2), pytest.param("bf16", 0.1, marks=pytest.mark.slow)],
)
def test_a_brought_function_is_part_of_a_program_in_csl(bring, tmp_path, monkeypatch, dtype, bound):
    """What the simulator computes with it is what NumPy does; its cycles are those of its text."""
    bring(*PACKAGES["own_function"])
    path = tmp_path / "signed.mesh"
    text = PRODUCT.replace("f32", dtype).replace("%s(x)", "softsign(x, width = 0.5)")
    path.write_text(text)
    device = {"target": "csl", "device": "wse3", "mesh": "2x2", "dtype": dtype}
    made = meshc.compile(path, **device)
    random = np.random.default_rng(3)
    given = {"x": random.standard_normal((4, 16)), "w": random.standard_normal((16, 8)) / 4}
    given = {name: value.astype(np.float32) for name, value in given.items()}
    found, cycles = run_files(made.files, given, tmp_path, monkeypatch)
    x = given["x"].astype(np.float64)
    np.testing.assert_allclose(
        found["result"], x / (0.5 + np.abs(x)) @ given["w"], rtol=0, atol=bound
    )
    predicted = json.loads(made.files["report.json"])["predicted_cycles"]
    assert predicted == pytest.approx(cycles, rel=0.1)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"abs"', '"tan"', r"\[bad-plugin\].*softsign.*CSL has exp, tanh, .* no 'tan'"),
        ("PYTHON, CUDA, csl", "PYTHON, CUDA", "does not emit 'softsign'"),
    ],
)
def test_what_csl_has_not_is_said_in_words(bring, tmp_path, old, new, words):
    code = (EXAMPLES / "own_function/own_function/softsign.py").read_text()
    assert old in code
    bring("meshc.functions", "softsign", "mine_parts:SOFTSIGN", code.replace(old, new))
    path = tmp_path / "signed.mesh"
    path.write_text(PRODUCT % "softsign")
    with pytest.raises(meshc.MeshcError, match=words):
        meshc.compile(path, target="csl", device="wse3", mesh="2x2")


@pytest.mark.parametrize(
    ("like", "changed", "model", "options", "file"),
    [
        ("wse3", ("memory_bytes = {value = 49_152", "memory_bytes = {value = 40_960"), "matmul",
         {"mesh": "2x2"}, "layout.csl"),
        ("h100", ("cores_x", "cores_x"), "tiny_llama", {"phase": "decode", "seq": 16}, "step.cu"),
    ],
)  # fmt: skip
def test_a_device_is_its_file(bring, tmp_path, like, changed, model, options, file):
    """A wafer and a GPU that no file of meshc names: each is compiled for by its own target."""
    text = (EXAMPLES.parent / "meshc" / "devices" / "data" / f"{like}.toml").read_text()
    assert f'name = "{like}"' in text and changed[0] in text
    text = text.replace(f'name = "{like}"', 'name = "mine"').replace(*changed)
    (tmp_path / "mine.toml").write_text(text)
    code = f"from pathlib import Path\nIT = Path({str(tmp_path / 'mine.toml')!r})"
    bring("meshc.devices", "mine", "mine_parts:IT", code)
    made = meshc.compile(EXAMPLES / f"{model}.mesh", device="mine", **options)
    assert file in made.files
    assert {module.the_device().name for module in made.modules.values()} == {"mine"}


def drawn(compiled):
    """Weights of a decode step by name."""
    random = np.random.default_rng(7)
    module = compiled.modules["decode"]
    shapes = {
        p.value.name: p.value.type.shape(module.dims)
        for p in module.function.params
        if p.role == "weight"
    }
    return {n: random.standard_normal(s) / np.sqrt(s[-1]) for n, s in shapes.items()}


PRODUCT = """model product(M=4, K=16, N=8) {
  weights f32  accumulate f32
  param w[K, N]
  main(x[M, K]) -> [M, N] { return %s(x) @ w }
}"""
GLM = """{"architectures": ["GlmForCausalLM"], "model_type": "glm"}"""
NORM = """module @m level(graph) holds(transpose_free) {
  dims E = 4
  func @main(in %x: f32[E]) -> (f32[E]) {
    %y = graph.scale %x {factor = 0.5} : f32[E]
    graph.return %y
  }
}
"""
ASKED = {
    "meshc.devices": ["compile", "mine.mesh", "--mesh", "1x1", "--device", "mine"],
    "meshc.families": ["compile", "config.json", "--mesh", "1x1", "--seq", "8"],
    "meshc.forms": ["opt", "m.meshir", "--passes", 'partition{grid=2x1,forms=["y=mine"]}'],
    "meshc.functions": ["compile", "mine.mesh", "--mesh", "1x1"],
}
FUNCTION = """import meshc
from dataclasses import dataclass
@dataclass(eq=False)
class Mine(meshc.ElementFunction):
    count: %s = 1
IT = meshc.BroughtFunction(Mine, "out = a", lambda x, count: x%s)
"""


@pytest.fixture
def given(monkeypatch, tmp_path):
    """A folder with what the commands take."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(GLM)
    (tmp_path / "m.meshir").write_text(NORM)
    (tmp_path / "mine.mesh").write_text(PRODUCT % "mine")
    return tmp_path


@pytest.mark.parametrize("group", ASKED)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ValueError('no')", "cannot be loaded: ValueError: no"),
        ("IT = 3", ("is no", "is no folder", "is no file")),
    ],
)
def test_what_is_none_is_said_of_its_package(bring, given, capsys, group, text, words):
    bring(group, "mine", "mine_parts:IT", text)
    assert main(ASKED[group]) == 1
    said = capsys.readouterr().err
    assert "error[bad-plugin]: " in said and " 'mine' of package-0 1.0 (mine_parts:IT) " in said
    assert any(one in said for one in ([words] if isinstance(words, str) else words))


@pytest.mark.parametrize(
    ("group", "text", "words"),
    [
        ("meshc.devices", 'name = "mine"', "is no device: "),
        ("meshc.devices", "name = ", "is no device: not TOML"),
        ("meshc.families", "", "has no model.mesh"),
    ],
)
def test_files_that_are_none_are_said(bring, given, capsys, group, text, words):
    (given / "mine.toml").write_text(text)
    place = "'mine.toml'" if group == "meshc.devices" else ""
    bring(group, "mine", "mine_parts:IT", f"from pathlib import Path\nIT = Path({place})")
    assert main(ASKED[group]) == 1
    assert f"(mine_parts:IT) {words}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "more", "words"),
    [
        ("list", "", "has an option 'count' that is no text, number"),
        ("int", " + 1", "gives 1.0 at 0, but its op has KEEPS_ZERO"),
    ],
)
def test_a_function_that_is_none_is_said(bring, given, capsys, kind, more, words):
    bring("meshc.functions", "mine", "mine_parts:IT", FUNCTION % (kind, more))
    assert main(ASKED["meshc.functions"]) == 1
    assert words in capsys.readouterr().err


def test_what_breaks_in_a_form_is_said_with_its_line_and_shown_again(bring, given, capsys):
    text = (
        "import meshc\nfrom meshc.ir.ops import graph\n"
        "def lower(way, op):\n    return 1 // 0\nIT = meshc.BroughtForm(graph.Scale, lower)\n"
    )
    bring("meshc.forms", "mine", "mine_parts:IT", text)
    assert main(ASKED["meshc.forms"]) == 1
    said = capsys.readouterr().err
    assert "form 'mine' of package-0 1.0 (mine_parts:IT) failed: ZeroDivisionError" in said
    assert f"note: at {given / 'mine_parts.py'}:4" in said
    assert main(shlex.split(said.strip().splitlines()[-1].split("again: meshc ")[1])) == 1
    assert "(mine_parts:IT) failed: ZeroDivisionError" in capsys.readouterr().err


def test_no_program_of_a_family_of_a_package_is_kept(bring):
    """Its text is no part of what a kept program is found by."""
    bring(*PACKAGES["own_family"])
    folder = EXAMPLES.parent / "tests" / "data" / "tiny_unshipped" / "glm-6h2"
    loaded = load_any(str(folder), meshc.Diagnostics())
    made = []
    for number in range(2):
        found = emitted_once(
            loaded, meshc.CompileRequest(), partial(next, iter([number])), meshc.Diagnostics()
        )
        made.append(found)
    assert made == [0, 1]


@pytest.mark.parametrize("group", ["meshc.devices", "meshc.families", "meshc.forms"])
def test_two_packages_of_one_name_are_refused(monkeypatch, given, capsys, group):
    name = "glm" if group == "meshc.families" else "mine"
    offer(monkeypatch, group, (name, "one:IT"), (name, "two:IT"))
    assert main(ASKED[group]) == 1
    said = capsys.readouterr().err
    assert f"'{name}' is brought by package-0 1.0 (one:IT) and package-1 1.0 (two:IT)" in said


def test_what_is_installed_changes_nothing_that_does_not_name_it(monkeypatch, given):
    """Broken packages of the names of meshc's own parts are not even imported."""
    names = {"meshc.devices": "wse2", "meshc.families": "llama", "meshc.functions": "silu"}
    for group, name in names.items():
        offer(monkeypatch, group, (name, "no_such_module:IT"))
    (given / "mine.mesh").write_text(PRODUCT % "silu")
    made = meshc.compile("mine.mesh", mesh="1x1", device="wse2", target="python")
    assert made.modules["main"].the_device().name == "wse2"


def test_a_block_of_the_model_comes_before_a_function_of_a_package(bring, given):
    bring("meshc.functions", "mine", "no_such_module:IT")
    text = (PRODUCT % "mine").replace("main(x", "block mine(t[M, K]) { return t * 0.5 }\n  main(x")
    (given / "mine.mesh").write_text(text)
    found = meshc.compile("mine.mesh", compile_to="graph").modules["main"]
    assert [op.NAME for op in found.walk()].count("graph.scale") == 1
