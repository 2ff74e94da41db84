"""Help of a refusal names what was tried, and what cures it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import meshc.devices
from meshc.backends.cuda import emit, gpu_steps
from meshc.backends.target_options import CudaOptions, MeshOptions
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.driver.remedies import with_help
from meshc.support.diagnostics import Diagnostic, Diagnostics, MeshcError

TINY = Path(__file__).parents[1] / "data" / "tiny" / "llama-3h1"
PRODUCT = Path(__file__).parents[2] / "examples" / "matmul.mesh"
DATA = Path(meshc.devices.__file__).parent / "data"


def asked(request):
    return request.options_of(CudaOptions)


def laid_out(request):
    return request.options_of(MeshOptions)


def refused(code, request, cures):
    """The help of a refusal where requests that are ``cures`` compile; and the requests tried."""
    tried = []

    def compiles(other):
        tried.append(other)
        if not cures(other):
            raise MeshcError([Diagnostic("error", code, "short")])

    found = with_help(MeshcError([Diagnostic("error", code, "short")]), request, compiles)
    return found.diagnostics[0], tried


@pytest.mark.parametrize("code", ["too-many-routes", "too-many-queues"])
def test_only_settings_that_cure_it_are_named(code):
    request = CompileRequest(target="csl", algo=("dispatch=ring",))
    one, _ = refused(code, request, lambda other: "gemm=cannon" in laid_out(other).algo)
    both = "--kv cyclic --algo all_reduce=k_tree:1 --algo gemm=cannon"
    assert one.help == f"--algo gemm=cannon or {both} takes fewer, and fits"
    none, tried = refused(code, request, lambda other: False)
    assert none.help.startswith("tried, and of no help: ") and "--kv cyclic" in none.help
    assert "leaving out --algo dispatch=ring" in none.help and len(tried) == 5
    other = request.changed(kv="shift", algo=("gemm=summa", "all_reduce=ring"))
    one, tried = refused(code, other, lambda other: laid_out(other).kv == "auto")
    assert one.help == "leaving out --kv shift takes fewer, and fits" and len(tried) == 3


def test_gpus_that_have_room_are_named():
    request = CompileRequest(target="cuda", gpus=2)
    one, tried = refused("does-not-fit", request, lambda other: asked(other).gpus >= 8)
    assert one.help.startswith("--gpus 8 fits") and [asked(other).gpus for other in tried] == [4, 8]


def test_clusters_that_have_room_are_named():
    """For which a step is one of one GPU."""
    request = CompileRequest(target="cuda", cluster=8, dataflow="split_head")
    one, tried = refused("does-not-fit", request, lambda other: asked(other).cluster == 2)
    assert one.help.startswith("--cluster 2 fits") and {asked(other).gpus for other in tried} == {1}
    one, tried = refused("does-not-fit", request, lambda other: not asked(other).dataflow)
    assert one.help.startswith("leaving out --cluster and --dataflow fits") and len(tried) == 3
    one, _ = refused("does-not-fit", request, lambda other: asked(other).gpus > 1)
    assert one.help is None


def test_seventy_billion_weights_want_two_gpus(monkeypatch):
    """Which is found out without prompts and, as no division helps, with one, whose room in a block
    is asked for before."""
    tried = []

    def emitted(step, *how):
        tried.append((step.placed.ranks is not None, how[3] is not None))
        return emit(step, *how)

    monkeypatch.setattr(gpu_steps, "emit", emitted)
    loaded = load_any("llama-3.3-70b", Diagnostics())
    with pytest.raises(MeshcError) as caught:
        compile_loaded(loaded, CompileRequest(target="cuda", device="h200"))
    (one,) = caught.value.diagnostics
    assert one.code == "does-not-fit" and one.help.startswith("--gpus 2 fits")
    assert tried[:2] == 2 * [(False, False)] and {*tried[2:]} == {(True, False)}


def small(folder, **numbers):
    """A WSE-3 with other ``numbers``."""
    text = (DATA / "wse3.toml").read_text()
    for key, value in numbers.items():
        text, found = re.subn(
            rf"(?m)^{key} = {{value = [0-9_]+", f"{key} = {{value = {value}", text
        )
        assert found == 1
    (folder / "small.toml").write_text(text)
    return str(folder / "small.toml")


def test_what_is_named_compiles(tmp_path):
    """Reductions in two phases want more colors than there are."""
    loaded = load_any(str(TINY), Diagnostics())
    request = CompileRequest(target="csl", phase="prefill", mesh="4x4", seq=16)
    request = request.changed(device=small(tmp_path, colors=9), algo=("all_reduce=k_tree:2",))
    with pytest.raises(MeshcError) as caught:
        compile_loaded(loaded, request)
    (one,) = caught.value.diagnostics
    assert one.code == "too-many-queues"
    assert one.help == "leaving out --algo all_reduce=k_tree:2 takes fewer, and fits"
    assert compile_loaded(loaded, request.changed(algo=())).files


def test_a_refusal_says_whose_program_it_was():
    loaded = load_any(str(TINY), Diagnostics())
    for device, words in (("wse2", "--target csl"), ("h100", "--target cuda")):
        request = CompileRequest(device=device, mesh="1x1", seq=4096)
        with pytest.raises(MeshcError) as caught:
            compile_loaded(loaded, request)
        one = caught.value.diagnostics[0]
        assert one.code == "does-not-fit"
        assert "--target python" in one.notes[-1] and words in one.notes[-1]


def test_all_numbers_that_a_compile_misses_are_named_at_once(tmp_path):
    text = (DATA / "ideal.toml").read_text()
    names = ("op_cycles", "vector_cycles", "scalar_cycles")
    for name in names:
        text, found = re.subn(rf"(?m)^{name} = .*\n", "", text)
        assert found == 1
    path = tmp_path / "lacking.toml"
    path.write_text(text)
    with pytest.raises(MeshcError) as caught:
        compile_loaded(
            load_any(str(TINY), Diagnostics()),
            CompileRequest(device=str(path), mesh="4x4", seq=16),
        )
    (one,) = caught.value.diagnostics
    assert one.code == "device-number" and {note.split(":")[0] for note in one.notes} == {*names}
    assert all(name in one.message and f"{name} = {{value" in one.help for name in names)
    assert "lacking" not in one.message and "trial" not in str(one)


def test_numbers_that_a_device_of_a_text_misses_are_named(tmp_path):
    """A text has a device of its own, and the library may be given one: neither is of a file."""
    given = meshc.devices.device("wse3")
    numbers = {key: value for key, value in given.numbers.items() if key != "task_ids"}
    lacking = replace(given, facts={**given.facts, "name": "lacking"}, numbers=numbers)
    product = load_any(str(PRODUCT), Diagnostics())
    to_tile = CompileRequest(device=lacking, mesh="2x2", compile_to="tile")
    (text,) = compile_loaded(product, to_tile).files.values()
    path = tmp_path / "product.meshir"
    path.write_text(text)
    for loaded, asked in (
        (product, CompileRequest(target="csl", device=lacking, mesh="2x2")),
        (load_any(str(path), Diagnostics()), CompileRequest(target="csl")),
    ):
        with pytest.raises(MeshcError) as caught:
            compile_loaded(loaded, asked)
        (one,) = caught.value.diagnostics
        assert one.code == "device-number" and "'lacking' does not give 'task_ids'" in one.message
