"""Running emitted programs on the fabric simulator, in this process."""

import re
import sys
from contextlib import contextmanager, redirect_stdout
from io import StringIO

import numpy as np

from meshc.backends import csl
from meshc.backends.csl.spelling.names import RESERVED
from meshc.devices import device
from meshc.driver import CompileRequest, compile_loaded, load_any
from meshc.ir.parser import parse_module
from meshc.passes.tile.allocate_routes import AllocateRoutes
from meshc.pipelines import resource_passes
from meshc.sim import cs_python, cslc
from meshc.sim.emitted_runs import host_names
from meshc.sim.host import host_operations
from meshc.sim.machine.run_options import Options
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source

PRODUCT = """\
model product(M={m}, K={k}, N={n}) {{
  weights f32  accumulate {accumulate}
  param w[K, N]
  main(x[M, K]) -> [M, N] {{ return x @ w }}
}}
"""


def emit(modules, portable=False):
    """The files of programs, whose resources are assigned as the driver does it."""
    for module in modules.values():
        csl.check(module)
        for one in resource_passes(portable):
            one.run(module, Diagnostics())
    files = csl.emit(modules, portable)
    for name in files:
        if name.endswith(".csl") and "layout" not in name:
            assert not own_names(files[name]) - RESERVED, "buffers could have these names"
    return files


def own_names(text):
    """Names that functions of a program declare for themselves, but for those of the module."""
    found = set(re.findall(r"^ +(?:const|var) (\w+)", text, re.MULTILINE))
    for function in re.split(r"^(?=fn |task )", text, flags=re.MULTILINE):
        head, _, body = function.partition("\n")
        found |= set(re.findall(r"(\w+): ", head)) if head.startswith("fn") else set()
        if not head.startswith("fn step"):  # where loops of the module are
            found |= set(re.findall(r"\|(\w+)\| \{", body))
    return {name for name in found if not name.startswith(("given_", "my_"))} - {"_"}


def emitted(modules, *choices, **options):
    """The files of modules with passes as ``choices`` say them, and others as usual."""
    instead = {one.NAME: one for one in choices}
    for module in modules.values():
        for one in resource_passes():
            instead.get(one.NAME, one).run(module, Diagnostics())
    return csl.emit(modules, **options)


@contextmanager
def apart():
    """What a host script changes in this process is put back."""
    path, argv, options = list(sys.path), list(sys.argv), host_operations.OPTIONS[0]
    depth = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.path[:], sys.argv[:], host_operations.OPTIONS[0] = path, argv, options
        sys.setrecursionlimit(depth)
        for name in [n for n in sys.modules if n.split(".")[0] == "cerebras"]:
            del sys.modules[name]


def run_files(files, tensors, folder, monkeypatch, strict=True, options=()):
    """Compile and run emitted files, ``options`` for their ``run.py``; the outputs by name and the
    cycles of the slowest PE."""
    prepare(files, tensors, folder, monkeypatch)
    printed = run_script(strict, options)
    found = {p.stem: np.load(p) for p in (folder / "data").glob("*.npy") if p.stem not in tensors}
    return found, int(re.match(r"(\d+) cycles", printed)[1])


def run_steps(files, constants, steps, folder, monkeypatch, strict=True):
    """Compile emitted files and run them once for each of ``steps``, inputs and run-time scalars;
    what PEs keep is carried on. The outputs of each step by name."""
    prepare(files, {}, folder, monkeypatch)
    program = Steps(folder, constants, strict)
    return [program.run(inputs, scalars) for inputs, scalars in steps]


class Steps:
    """The compiled program in ``folder`` with the weights ``constants``, loaded once, as its host
    program does it for the tokens of a model; ``cycles`` are those of the last step."""

    def __init__(self, folder, constants, strict=True):
        with apart():
            options = Options(strict_queues=strict, files=False)
            names = host_names(folder / "run.py", options)
            self.scalars = {name: low for name, (low, _) in names.get("SCALARS", {}).items()}
            self.program = names["Program"](str(folder / "out"), constants.__getitem__)
        self.cycles = 0

    def run(self, inputs, scalars):
        """The outputs by name for ``inputs`` and run-time scalars; others are the least ones."""
        told = [self.scalars | scalars] if self.scalars else []
        outputs = self.program.run(inputs.__getitem__, *told)
        self.cycles = int(self.program.spent.max())
        return outputs


def prepare(files, tensors, folder, monkeypatch):
    """Write emitted files and their tensors into ``folder``, which becomes the working directory,
    and compile them."""
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "data").mkdir()
    save(folder / "data", tensors)
    (commands,) = (text for name, text in files.items() if name.startswith("commands"))
    compile_words = next(line for line in commands.splitlines() if line.startswith("cslc "))
    monkeypatch.chdir(folder)
    with apart():
        assert cslc.main(compile_words.split()[1:]) == 0


def save(folder, tensors):
    """Tensors as files for the host."""
    for name, tensor in tensors.items():
        np.save(folder / f"{name}.npy", tensor)


def run_script(strict=True, options=()):
    """Run ``run.py`` of the working directory; what it prints."""
    printed = StringIO()
    words = ["--strict-queues"] if strict else []
    with apart(), redirect_stdout(printed):
        assert cs_python.main([*words, "run.py", "--name", "out", *options]) == 0
    return printed.getvalue()


def compiled(text, folder, name="program.mesh", **request):
    """The modules of the text of a file called ``name``, at the tile level if at no other."""
    path = folder / name
    path.write_text(text)
    report = Diagnostics()
    loaded = load_any(str(path), report)
    asked = CompileRequest(**{"compile_to": "tile"} | request)
    return compile_loaded(loaded, asked, (), report).modules


def product_error(folder, monkeypatch, sizes, dtype, accumulate, arch, mesh):
    """Largest error of an emitted product, in units of its bound, and its cycles."""
    m, k, n = sizes
    text = PRODUCT.format(m=m, k=k, n=n, accumulate=accumulate)
    modules = compiled(text, folder, device=arch, mesh=mesh, dtype=dtype)
    rng = np.random.default_rng(0)
    kind = {"f16": np.float16, "f32": np.float32}[dtype]
    x = rng.standard_normal((m, k)).astype(kind)
    w = rng.standard_normal((k, n)).astype(kind)
    found, cycles = run_files(emit(modules), {"x": x, "w": w}, folder, monkeypatch)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    return np.max(np.abs(found["result"] - exact) / bound(x, w, dtype, accumulate)), cycles


def bound(x, w, dtype, accumulate):
    """Rounding of a sum of k products in any order: (k + 1) u per unit of sum |x||w|, with u the
    unit roundoff of the accumulator, and one rounding to the result's type."""
    unit = {"f16": 2.0**-11, "f32": 2.0**-24}
    spread = np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64)
    sums = unit["f16" if dtype == accumulate == "f16" else "f32"]
    return (x.shape[1] + 1) * sums * spread + unit[dtype] * spread + 1e-7


def tile_text(text, arch):
    """A tile-level module of a text, with the numbers of a device, and with routes on it unless the
    text has some."""
    module = parse_module(Source("tile.meshir", text))
    module.device = device(arch)
    if module.channels and all(channel.send_color for channel in module.channels):
        return module
    return AllocateRoutes().run(module, Diagnostics())
