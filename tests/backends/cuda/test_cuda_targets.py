"""Programs for GPUs of other numbers: what they take of a block, and on which GPU they run."""

import json
from dataclasses import replace
from importlib import resources

import pytest
from test_manifest import manifest

from meshc.backends.cuda import GpuMachine, from_json, other_than
from meshc.backends.cuda.driver.gpu import Device
from meshc.backends.cuda.program import FORMAT, Target
from meshc.backends.cuda.toolchain.toolkit import compile_cubin
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.support.diagnostics import Diagnostics, MeshcError

SHORT = 99 * 1024
GPUS = ("h100", "h200", "gh200", "h100-pcie", "h20", "b200")
WAYS = {"tasks": {}, "chunks": {"chunk": 512}}


def short_blocks(folder):
    """A file of a GPU whose blocks have 99 KiB."""
    path = folder / "short.toml"
    text = 'name = "short"\nlike = "h200"\ndescription = "short blocks"\n'
    path.write_text(f"{text}memory_bytes = {SHORT}\ncore_memory_bytes = {SHORT + 1024}\n")
    return str(path)


def _text_of(name):
    return (resources.files("meshc.devices") / "data" / f"{name}.toml").read_text(encoding="utf-8")


def compiled(model, gpu, **options):
    report = Diagnostics()
    request = CompileRequest(target="cuda", dtype="f16", seq=1024, device=gpu, **options)
    return compile_loaded(load_any(model, report), request, (), report).files


@pytest.mark.parametrize(
    ("model", "refused"),
    [("smollm2-135m", set()), ("llama-2-7b", {"chunks"})],
)
def test_kernels_keep_within_the_blocks_of_a_device_file(model, refused, tmp_path):
    """Steps with prompts by tasks and by kernels; what has no room is refused with the numbers."""
    gpu, found = short_blocks(tmp_path), set()
    for way, options in WAYS.items():
        try:
            program = from_json(compiled(model, gpu, **options)["manifest.json"])
        except MeshcError as problem:
            found.add(way)
            assert "bytes" in problem.diagnostics[0].message
            continue
        assert program.device.block_bytes == SHORT
        assert all(kernel.shared_bytes <= SHORT for kernel in program.kernels.values())
    assert found == refused


def test_what_is_emitted_differs_where_the_numbers_of_gpus_do():
    """By their names alone the manifests would differ; kernels do as well."""
    texts = {}
    for gpu in GPUS:
        files = compiled("llama-3-8b", gpu)
        program = from_json(files["manifest.json"])
        numbers = device(gpu)
        assert program.device == Target(gpu, numbers.cuda_arch, numbers.cores, 232448)
        assert program.kernels["step"].blocks == numbers.cores
        texts[gpu] = files["step.cu"]
    flying = {gpu: text.split("int FLYING = ")[1].split(";")[0] for gpu, text in texts.items()}
    assert flying == {
        "h100": "2",
        "h200": "3",
        "gh200": "3",
        "h100-pcie": "2",
        "h20": "4",
        "b200": "4",
    }
    kinds = {(flying[gpu], device(gpu).cores) for gpu in GPUS}  # gh200 has the cores of h200
    assert len(set(texts.values())) == len(kinds) == 5


@pytest.mark.cuda_compiler
def test_a_device_says_how_many_tiles_are_asked_for_in_front_of_a_meeting():
    h200 = device("h200")
    numbers = {k: n for k, n in h200.numbers.items() if k != "early_bytes_in_flight"}
    silent = replace(h200, numbers=numbers)
    assert silent.early_bytes_in_flight == silent.bytes_in_flight == 49152
    for early, found in ((16384, "EARLY = 1;"), (16385, "EARLY = 2;"), (32768, "EARLY = 2;")):
        given = h200.with_numbers(early_bytes_in_flight=early)
        assert found in compiled("smollm2-135m", given)["step.cu"]
    for same in (silent, h200.with_numbers(early_bytes_in_flight=49152)):
        text = compiled("smollm2-135m", same)["step.cu"]
        assert "Pace" not in text and "const int pace = FLYING;" in text


def test_the_library_is_compiled_for_blackwell_too():
    for name in ("step", "prompt"):
        text = compiled("smollm2-135m", "b200")[f"{name}.cu"]
        assert compile_cubin(text, device("b200").cuda_arch).kernels[name].spill_bytes == 0


def test_a_device_file_without_an_architecture_gives_no_kernels(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(_text_of("h100").replace('cuda_arch = "sm_90a"\n', ""), encoding="utf-8")
    with pytest.raises(MeshcError, match=r"\[device-number\].*does not give 'cuda_arch'"):
        compiled("smollm2-135m", str(path))
    path.write_text(_text_of("h100").replace("sm_90a", "90"), encoding="utf-8")
    with pytest.raises(MeshcError, match=r"\[bad-device\].*'cuda_arch' must be an architecture"):
        compiled("smollm2-135m", str(path))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target("b200", "sm_100a", 148, 232448), r"b200 \(compute capability 10.0\), not for Fake"),
        (Target("mine", "sm_90a", 132, 300000), "300000 bytes .*; Fake GPU 0 has 132 and 232448"),
    ],
)
def test_a_gpu_that_is_not_the_programs_is_refused(target, words, fake):
    refused = pytest.raises(MeshcError, match=rf"\[cuda-device\]: the program was .*{words}")
    with Device(library=fake.path) as found, refused:
        GpuMachine(found, target, {}, {})


def test_a_gpu_by_whose_numbers_work_was_not_divided_is_told_of(fake):
    with Device(library=fake.path) as found:
        assert other_than(found.facts, Target("h200", "sm_90a", 132, 232448)) == ""
        pcie = Target("h100-pcie", "sm_90a", 114, 232448)
        GpuMachine(found, pcie, {}, {})
        assert "compiled for h100-pcie (114 multiprocessors" in other_than(found.facts, pcie)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 5}, f"manifest of 'm' has format 5, .* reads format {FORMAT}"),
        ({"format": "x", "model": 3}, "the manifest has format none that is known"),
        ({"device": "h200"}, "describes no decode step"),
        ({"device": {"name": "h200"}}, "describes no decode step"),
        ({"device": {"arch": "90"}}, "there is no architecture '90'"),
        ({"device": {"block_bytes": 512}}, "kernel 'step' has 1024 bytes .* h200 gives it 512"),
    ],
)
def test_directories_of_other_versions_and_for_no_device_are_refused(changes, words):
    program, text = manifest()
    found = json.loads(text)
    if isinstance(changes.get("device"), dict) and "name" not in changes["device"]:
        changes = {"device": found["device"] | changes["device"]}
    with pytest.raises(MeshcError, match=rf"\[no-program\]: .*{words}"):
        from_json(json.dumps(found | changes))
    assert from_json(replace(program, model="n").to_json()).model == "n"
