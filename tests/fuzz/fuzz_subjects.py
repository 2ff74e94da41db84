"""What is fuzzed: for each kind of input its seeds, how inputs are made, and what runs them.

An input is a few files and the arguments of a command; the first file is the one that was damaged.
Number n of a subject is always the same input.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import fuzz_mutations as damage
from fuzz_emitted import altered, emit_and_interpret
from fuzz_grammar import csl_body, model_text, pipeline_text
from fuzz_limits import INPUT_TIME
from fuzz_orders import drawn_order, run_order

from meshc.cli import main
from meshc.devices import device_names
from meshc.driver import CompileRequest, compile_loaded, load_any, open_weights
from meshc.frontend.checkpoints import config_from_gguf, load_tokenizer, read_config
from meshc.frontend.language.loader import library_names, library_source
from meshc.sim import cslc
from meshc.sim.host.host_operations import OPTIONS, Runtime
from meshc.sim.machine.run_options import Options
from meshc.sim.stored_programs import FILE_NAME
from meshc.support.diagnostics import Diagnostics
from meshc.support.output import write_directory

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
MESHES = ("1x1", "2x2", "3x2", "1x4", "4x1", "2x3", "4x4")
_SIM_CYCLES = 200_000

for folder in ("sim", "frontend/checkpoints"):
    if str(TESTS / folder) not in sys.path:
        sys.path.append(str(TESTS / folder))


@dataclass(frozen=True)
class Case:
    """The files of an input by name, the damaged one first, and the arguments of its command."""

    files: dict[str, bytes]
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the damaged file; empty when the damage is in the arguments."""
        return next(iter(self.files), "")


@dataclass(frozen=True)
class Subject:
    """``make`` gives an input; ``run`` gives the exit code of a command or raises MeshcError;
    ``share`` is how many of a hundred inputs of a campaign are its."""

    name: str
    share: int
    make: Callable[[Random], Case]
    run: Callable[[Case], int]

    def case(self, number: int) -> Case:
        """The input with a number."""
        return self.make(Random(f"{self.name} {number}"))


def _command(case: Case) -> int:
    return main(list(case.arguments))


def _texts(*patterns: str) -> list[str]:
    found = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return [path.read_text(encoding="utf-8") for path in found]


# --- the .mesh language


@cache
def _models() -> list[str]:
    library = [library_source(name).text for name in library_names()]
    return [*_texts("examples/*.mesh", "tests/golden/*/*.mesh"), *library]


_TARGETS = (
    ("--target", "python"),
    ("--target", "csl", "--device", "wse2"),
    ("--target", "csl", "--device", "wse3"),
    ("--target", "cuda"),
    ("--compile-to", "graph"),
    ("--compile-to", "mesh"),
    ("--compile-to", "tile"),
)


def _compiled(random: Random, name: str) -> tuple[str, ...]:
    mesh, target = random.choice(MESHES), random.choice(_TARGETS)
    place = [] if {"cuda", "graph"} & {*target} else ["--mesh", mesh]
    flags = ["compile", name, *place, *target, "-o", "o"]
    if random.random() < 0.3:
        flags += ["--seq", random.choice(("1", "2", "5", "16"))]
    if random.random() < 0.2:
        flags += ["--layers", random.choice(("1", "2"))]
    return tuple(flags)


def _language(random: Random) -> Case:
    if random.random() < 0.5:
        text = model_text(random)
        if random.random() < 0.4:
            text = damage.damaged_text(random, text, [])
    else:
        text = damage.damaged_text(random, random.choice(_models()), _models())
    return Case({"m.mesh": text.encode(errors="surrogatepass")}, _compiled(random, "m.mesh"))


# --- .meshir text and pipelines


@cache
def _modules() -> list[str]:
    written = _texts("examples/*.meshir", "tests/golden/**/*.meshir", "tests/passes/*/*.meshir")
    halves = [half for text in written for half in text.split("# ---")]
    return [half for half in [*halves, *_lowered()] if "module @" in half and len(half) < 40_000]


@cache
def _lowered() -> list[str]:
    """Modules of every level from the examples."""
    found = []
    for name in ("mlp", "attention", "matmul"):
        for level in ("graph", "mesh", "tile"):
            report = Diagnostics()
            place = {} if level == "graph" else {"mesh": "2x2"}
            request = CompileRequest(**place, seq=4, compile_to=level)
            model = load_any(str(ROOT / "examples" / f"{name}.mesh"), report)
            found += list(compile_loaded(model, request, report=report).files.values())
    return found


def _module(random: Random) -> Case:
    text = random.choice(_modules())
    if random.random() < 0.9:
        text = damage.damaged_text(random, text, _modules())
    arguments: tuple[str, ...]
    if random.random() < 0.6:
        arguments = ("opt", "m.meshir", "--passes", _passes_for(random, text))
    else:
        arguments = _compiled(random, "m.meshir")
    return Case({"m.meshir": text.encode(errors="surrogatepass")}, arguments)


def _passes_for(random: Random, text: str) -> str:
    """Mostly the usual passes of the module's level, so that they run."""
    usual = {
        "graph": "canonicalize,eliminate-transpose,partition,place-interleave,shift-kv-cache,"
        "select-collective,expand-programs,allocate-routes,schedule-tasks,plan-memory",
        "mesh": "place-interleave,select-collective,expand-programs,allocate-routes,plan-memory",
        "tile": "allocate-routes,schedule-tasks,plan-memory",
    }
    level = next((name for name in usual if f"level({name})" in text), "")
    if level and random.random() < 0.7:
        names = usual[level].split(",")
        return ",".join(names[: random.randint(0, len(names))])
    return pipeline_text(random)


def _emitted(random: Random) -> Case:
    text = altered(random, random.choice(_modules()))
    return Case({"m.meshir": text.encode(errors="surrogatepass")})


def _pipeline(random: Random) -> Case:
    text = pipeline_text(random)
    if random.random() < 0.5:
        text = damage.damaged_text(random, text, [])
    module = random.choice(_modules()).encode()
    return Case({"m.meshir": module}, ("opt", "m.meshir", "--passes", text.replace("\0", "")))


def _order(random: Random) -> Case:
    text, passes = drawn_order(random)
    return Case({"m.meshir": text.encode()}, (passes,))


# --- devices


def _device(random: Random) -> Case:
    names = device_names()
    seeds = [(ROOT / f"meshc/devices/data/{name}.toml").read_text() for name in names]
    text = damage.damaged_text(random, random.choice(seeds), seeds)
    mesh = ("--mesh", "2x2")
    target = random.choice(
        (("--target", "csl", *mesh), ("--target", "cuda"), ("--compile-to", "tile", *mesh))
    )
    example = str(ROOT / "examples" / random.choice(("matmul.mesh", "tiny_llama.mesh")))
    arguments = random.choice(
        (
            ("devices", "d.toml"),
            ("devices", "d.toml"),
            ("compile", example, "--device", "d.toml", "--seq", "8", *target),
            ("estimate", "64", "64", "64", "--device", "d.toml", "--mesh", "4x4"),
        )
    )
    return Case({"d.toml": text.encode(errors="surrogatepass")}, arguments)


# --- model files


@cache
def _checkpoints() -> list[dict[str, bytes]]:
    folders = sorted((TESTS / "data" / "tiny").iterdir())
    folders += sorted((TESTS / "data" / "tiny_cuda").iterdir())
    found = [{p.name: p.read_bytes() for p in sorted(f.iterdir())} for f in folders]
    return [files for files in found if "config.json" in files]


def _config(random: Random) -> Case:
    text = random.choice(_checkpoints())["config.json"].decode()
    damaged = damage.damaged_json(random, text).encode(errors="surrogatepass")
    target = random.choice((*_TARGETS, ("--compile-to", "graph"), ("--compile-to", "graph")))
    mesh = () if {"cuda", "graph"} & {*target} else ("--mesh", "2x2")
    flags = ("--seq", "8", "--layers", "1", *mesh, *target)
    return Case({"config.json": damaged}, ("compile", "config.json", *flags))


def _checkpoint(random: Random) -> Case:
    """Weights, index or tokenizer of a checkpoint."""
    files = dict(random.choice(_checkpoints()))
    name = random.choice([n for n in files if n != "config.json"])
    data = files.pop(name)
    if name.endswith(".json"):
        data = damage.damaged_json(random, data.decode()).encode(errors="surrogatepass")
    else:
        data = damage.damaged_bytes(random, data, 8 + int.from_bytes(data[:8], "little"))
    return Case({name: data, **files})


def _read_checkpoint(case: Case) -> int:
    report = Diagnostics()
    config = read_config(Path(), report)
    weights = open_weights(Path(), config, None, report)
    for name in weights:
        weights[name].sum()
    if Path("tokenizer.json").is_file():
        tokenizer = load_tokenizer(Path(), config)
        ids = tokenizer.encode("The capital of France is\u00e9 \U0001f600")
        tokenizer.continuation(ids, ids[:3])
    return 0


@cache
def _ggufs() -> list[bytes]:
    import model_files as files

    found = []
    for family in ("llama", "qwen2", "qwen3"):
        sizes = {"hidden": 4, "heads": 2, "kv_heads": 1, "head_dim": 2, "ffn": 3, "layers": 1}
        config = files.model_config(family=family, vocab=260, **sizes)
        pairs = [*files.gguf_pairs(config), *files.BPE_VOCABULARY]
        tensors = files.gguf_tensors(config, files.hf_tensors(config))
        raw = [(name, t.shape, 0, t.astype("<f4").tobytes()) for name, t in tensors]
        found.append(files.gguf_bytes(pairs, raw))
    return [*found, *_ggufs_of_families()]


def _ggufs_of_families() -> list[bytes]:
    """Files with windows, factors of LongRoPE, constants, experts and YaRN."""
    import gguf_checkpoints as checkpoints

    names = (
        "tiny_families/gemma3-3h1-capped-bf16",
        "tiny_families/phi3-4h2-long-bf16",
        "tiny_scaled/granite-3h1-tied-bf16",
        "tiny_experts/mixtral-3x1-bf16",
        "tiny_gpt_oss/gpt-oss-5x2-yarn",
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "m.gguf"
        return [
            checkpoints.files.write_gguf(path, *checkpoints.recorded(name)).read_bytes()
            for name in names
        ]


def _gguf(random: Random) -> Case:
    data = random.choice(_ggufs())
    return Case({"m.gguf": damage.damaged_bytes(random, data, random.choice((1200, 8000)))})


def _read_gguf(case: Case) -> int:
    report = Diagnostics()
    path = Path("m.gguf")
    config = config_from_gguf(path, report)
    weights = open_weights(path, config, None, report)
    for name in weights:
        weights[name].sum()
    load_tokenizer(path, config).encode("ab")
    return 0


# --- CSL


@cache
def _csl_seeds() -> list[tuple[str, str]]:
    """Layouts and PE programs: one that uses much of the language, and what the compiler emits."""
    from test_sim_mutations import LAYOUT, PE

    found = [(LAYOUT, PE), (LAYOUT, PE)]
    for name, mesh in (("matmul", "2x2"), ("matmul", "4x2")):
        report = Diagnostics()
        model = load_any(str(ROOT / "examples" / f"{name}.mesh"), report)
        request = CompileRequest(target="csl", device="wse2", mesh=mesh)
        files = compile_loaded(model, request, report=report).files
        found.append((files["layout.csl"], files["main.csl"].replace("main.csl", "pe.csl")))
    return found


_RUN_LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("out", [*]f32, true);
  @export_name("run", fn()void);
}
"""
_RUN_HEAD = """
param memcpy_params: comptime_struct;
const sys = @import_module("<memcpy/memcpy>", memcpy_params);
var out = @zeros([4]f32); var out_ptr: [*]f32 = &out; var n: i16 = 1;
const vec = @get_dsd(mem1d_dsd, .{ .tensor_access = |i|{4} -> out[i] });
"""
_RUN_TAIL = 'comptime { @export_symbol(out_ptr, "out"); @export_symbol(run); }\n'


def _csl(random: Random) -> Case:
    if random.random() < 0.5:
        text = f"fn run() void {{\n{csl_body(random)}\nsys.unblock_cmd_stream(); }}\n"
        if random.random() < 0.3:
            text = damage.damaged_text(random, text, [])
        files = {"pe.csl": _RUN_HEAD + text + _RUN_TAIL, "layout.csl": _RUN_LAYOUT}
    else:
        layout, pe = random.choice(_csl_seeds())
        others = [text for pair in _csl_seeds() for text in pair]
        if random.random() < 0.2:
            files = {"layout.csl": damage.damaged_text(random, layout, others), "pe.csl": pe}
        else:
            files = {"pe.csl": damage.damaged_text(random, pe, others), "layout.csl": layout}
    arch = random.choice(("wse2", "wse3"))
    encoded = {name: text.encode(errors="surrogatepass") for name, text in files.items()}
    return Case(encoded, (f"--arch={arch}", "layout.csl", "--memcpy", "-o", "out"))


def _run_csl(case: Case) -> int:
    code = cslc.main(list(case.arguments))
    return code or _run_program()


def _run_program() -> int:
    """Load what was compiled, and run its function on the Python machine."""
    OPTIONS[0] = Options(backend="python", max_cycles=_SIM_CYCLES)
    runtime = Runtime("out")
    runtime.load()
    if "run" in runtime.program.exports:
        runtime.launch("run", ())
    runtime.stop()
    return 0


@cache
def _sim_program() -> str:
    import tempfile

    from csl_runner import PE_HEAD, SINGLE, exports

    layout = SINGLE.replace("EXPORTS", exports(run="fn()void"))
    pe = PE_HEAD + "fn run() void { sys.unblock_cmd_stream(); } comptime{@export_symbol(run);}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "layout.csl").write_text(layout)
        (Path(folder) / "pe.csl").write_text(pe)
        arguments = [f"{folder}/layout.csl", "--memcpy", "-o", f"{folder}/out"]
        assert cslc.main(arguments) == 0
        text = (Path(folder) / "out" / FILE_NAME).read_text().replace(folder, "place")
        return text.partition("\n")[0]


def _simulation(random: Random) -> Case:
    """Half of the damaged programs have the hash of what they say, as an attacker's would."""
    damaged = damage.damaged_json(random, _sim_program()).encode(errors="surrogatepass")
    hashed = damaged if random.random() < 0.5 else b""
    seal = hashlib.sha256(hashed).hexdigest().encode()
    return Case({f"out/{FILE_NAME}": damaged + b"\n" + seal + b"\n"})


# --- output directories


@cache
def _program() -> dict[str, bytes]:
    """What ``compile`` leaves of a small model."""
    import tempfile

    report = Diagnostics()
    model = load_any(str(ROOT / "examples" / "matmul.mesh"), report)
    compiled = compile_loaded(model, CompileRequest(mesh="2x2"), report=report)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "o"
        write_directory(folder, compiled.files, compiled.facts)
        return {f"o/{p.name}": p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


def _manifest(random: Random) -> Case:
    files = dict(_program())
    text = damage.damaged_json(random, files.pop("o/meshc.json").decode())
    arguments = random.choice(
        (
            ("run", "o", "--prompt-ids", "1,2"),
            ("compile", str(ROOT / "examples" / "matmul.mesh"), "--mesh", "1x1", "-o", "o"),
        )
    )
    return Case({"o/meshc.json": text.encode(errors="surrogatepass"), **files}, arguments)


# --- the judge itself


def _misbehaving(case: Case) -> int:
    """Faults of each kind on demand, by which the judge is tested."""
    (wanted,) = case.arguments
    if wanted == "memory":
        bytearray(2 << 30)
    if wanted == "raise" or b"BAD" in b"".join(case.files.values()):
        raise KeyError("on demand")
    if wanted == "die":
        os._exit(9)
    if wanted == "busy":
        _work(3)
    if wanted == "judge":
        with INPUT_TIME.judging():
            _work(3)
    return {"internal": 3}.get(wanted, 0)


def _work(seconds: float) -> None:
    """Take so much processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


SUBJECTS = {
    subject.name: subject
    for subject in (
        Subject("language", 14, _language, _command),
        Subject("module", 20, _module, _command),
        Subject("emitted", 12, _emitted, lambda case: emit_and_interpret(case.name)),
        Subject("pipeline", 8, _pipeline, _command),
        Subject("order", 4, _order, lambda case: run_order(case.name, *case.arguments)),
        Subject("device", 8, _device, _command),
        Subject("config", 5, _config, _command),
        Subject("checkpoint", 10, _checkpoint, _read_checkpoint),
        Subject("gguf", 15, _gguf, _read_gguf),
        Subject("csl", 12, _csl, _run_csl),
        Subject("simulation", 4, _simulation, lambda case: _run_program()),
        Subject("manifest", 4, _manifest, _command),
        Subject("bounds", 0, lambda random: Case({}, ("none",)), _misbehaving),
    )
}


def as_json(case: Case) -> str:
    """The arguments and files of an input, for a report."""
    shown = {name: data.decode("utf-8", "backslashreplace") for name, data in case.files.items()}
    return json.dumps({"arguments": case.arguments, "files": shown}, indent=1)
