"""Random functions of single rows or of many: weights, norms and sums of them, perhaps a loop."""

import random
from functools import cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

from meshc.backends.request import CompileRequest
from meshc.devices import device, load_device
from meshc.driver.compiling import graph_module
from meshc.driver.models import LoadedModel
from meshc.frontend.language import parse_model
from meshc.ir.parser import parse_module
from meshc.passes.manager import PassManager
from meshc.pipelines import pipeline_to
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source

DEVICES = ("ideal", "toy", "wse2", "wse3")
MESHES = ("1x1", "2x2", "3x2", "2x3", "4x1", "1x5", "3x4", "5x3")

WIDE = ("16x16", "9x20", "24x8", "3x30")


@cache
def node_of_rows():
    """A node like ``h100x8`` with rows of eight GPUs, of which there are eight."""
    entry = resources.files("meshc.devices") / "data" / "h100x8.toml"
    text = entry.read_text().replace("cores_y = {value = 1,", "cores_y = {value = 8,")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "node_of_rows.toml"
        path.write_text(text)
        return load_device(path)


def random_graph(seed, ops=6, loops=True, many_rows=False, tight=False):
    """A graph-level module of at most ``ops`` ops and the mesh to partition it for. With
    ``many_rows`` its functions have several rows of tokens, in half of them as many as a run says,
    and most are for a device whose cores all reach each other at once. On a ``tight`` device
    reductions have as few queues as some of its ways can do with."""
    drawn = random.Random(seed)
    writer = _Writer(drawn, loops)
    for _ in range(drawn.randint(2, ops)):
        writer.op()
    mesh = drawn.choice(WIDE if tight else MESHES)
    writer.rows = drawn.randint(2, 9) if many_rows else 1
    writer.counted = many_rows and drawn.random() < 0.5
    text = writer.text()
    module = parse_module(Source(f"random {seed}", text))
    wafers = [device(name) for name in DEVICES]
    nodes = [node_of_rows()] * 6 if many_rows else []
    module.device = drawn.choice([*wafers, *nodes])
    if tight:
        colors, queues = drawn.choice([4, 6, 9, 21]), drawn.choice([2, 3, 4, 5, 6])
        module.device = device("wse2").with_numbers(
            colors=colors, reserved_colors=0, input_queues=queues, reserved_input_queues=0
        )
    return module, mesh


ATTENTION = """model attention(E={features}, H={heads}, G={groups}, D={lanes}) {{
  heads H share G
  param gain[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]
  main(x[B, L, E]) {{
    h = rms_norm(x, gain)
    keys = append(cache.k, h @ wk)
    values = append(cache.v, h @ wv)
    p = softmax((h @ wq) @ transpose(keys) / sqrt(D), mask = causal)
    return x + (p @ values) @ wo
  }}
}}
"""


def random_attention(seed):
    """A decode step of one attention layer with grouped heads and the mesh to partition it for, on
    a device of fast or slow exponentials, whose cores pass messages on or store them."""
    drawn = random.Random(seed)
    groups = drawn.randint(1, 3)
    extents = {"features": drawn.randint(2, 9), "groups": groups, "lanes": 2 * drawn.randint(1, 3)}
    text = ATTENTION.format(**extents, heads=groups * drawn.randint(1, 3))
    name = drawn.choice((*DEVICES, "h100x8"))
    few = ("row=2,gpu=4", "row=4,gpu=2", "row=8,gpu=1", "row=1,gpu=8")
    mesh = drawn.choice(few if name == "h100x8" else ("2x2", "3x2", "2x3", "1x2", "3x4", "4x1"))
    dtype = "f16" if name == "h100x8" else drawn.choice(("f32", "f16"))
    request = CompileRequest(device=name, mesh=mesh, seq=drawn.randint(4, 9), dtype=dtype)
    return attention(text, request), mesh


def attention(text, request, phase="decode"):
    """The graph of a phase of a model in the language."""
    model = parse_model(Source("attention.mesh", text), diagnostics=Diagnostics())
    module = graph_module(LoadedModel("attention", model, None), phase, request)
    return PassManager(pipeline_to("graph")).run(module)


class _Writer:
    """Draws ops one by one; ``vectors`` are those that later ops may read, with their dims."""

    def __init__(self, drawn, loops):
        self.drawn, self.loops = drawn, loops
        self.rows, self.counted = 1, False
        self.dims = {**{name: drawn.randint(2, 9) for name in "EFK"}, "N": 2}
        self.weights, self.lines = [], []
        self.vectors = [("x", "E")]
        self.count = 0

    def fresh(self, kind):
        self.count += 1
        return f"{kind}{self.count}"

    def weight(self, *dims):
        self.weights.append((self.fresh("w"), dims))
        return self.weights[-1][0]

    def line(self, dim, words):
        self.lines.append(f"    %{self.fresh('v')} = {words} : f32[L, {dim}]")
        self.vectors.append((f"v{self.count}", dim))

    def op(self):
        name, dim = self.drawn.choice(self.vectors[-3:])
        kind = self.drawn.choice(["matmul"] * 4 + ["pair", "norm", "norm", "silu", "add", "loop"])
        alike = [n for n, d in self.vectors if d == dim and n != name]
        if kind == "norm":
            gain = self.weight(dim)
            self.line(dim, f"graph.rms_norm %{name}, %{gain} {{dim = {dim}}}")
        elif kind == "silu":
            self.line(dim, f"graph.silu %{name}")
        elif kind == "add" and alike:
            self.line(dim, f"graph.add %{name}, %{self.drawn.choice(alike)}")
        elif kind == "loop" and self.loops and dim == "E":
            self.loop(name)
        elif kind == "pair":
            self.pair(name, dim)
        else:
            new = self.drawn.choice([d for d in "EFK" if d != dim])
            right = self.weight(dim, new)
            self.line(new, f"graph.matmul %{name}, %{right} {{contract = [{dim}]}}")

    def pair(self, name, dim):
        new = self.drawn.choice([d for d in "EFK" if d != dim])
        rights = [self.weight(dim, new) for _ in range(2)]
        first, second = self.fresh("v"), self.fresh("v")
        kind = f"f32[L, {new}]"
        self.lines.append(
            f"    %{first}, %{second} = graph.matmul %{name}, %{rights[0]}, %{rights[1]} "
            f"{{contract = [{dim}]}} : {kind}, {kind}"
        )
        self.line(new, f"graph.mul %{first}, %{second}")

    def loop(self, name):
        """One product up and one down over layers, with or without a residual connection."""
        up, down = self.weight("N", "E", "F"), self.weight("N", "F", "E")
        gain = self.weight("N", "E")
        result, arg = self.fresh("v"), self.fresh("a")
        inner = [self.fresh("i") for _ in range(4)]
        slices = [self.fresh("s") for _ in range(3)]
        last = self.drawn.choice([inner[2], inner[3]])
        self.lines += [
            f"    %{result} = graph.repeat %{name}, %{gain}, %{up}, %{down} "
            "{dim = N, carried = 1} "
            f": f32[L, E] (%{arg}: f32[L, E], %{slices[0]}: f32[E], %{slices[1]}: f32[E, F], "
            f"%{slices[2]}: f32[F, E]) {{",
            f"      %{inner[0]} = graph.rms_norm %{arg}, %{slices[0]} {{dim = E}} : f32[L, E]",
            f"      %{inner[1]} = graph.matmul %{inner[0]}, %{slices[1]} {{contract = [E]}} "
            ": f32[L, F]",
            f"      %{inner[2]} = graph.matmul %{inner[1]}, %{slices[2]} {{contract = [F]}} "
            ": f32[L, E]",
            f"      %{inner[3]} = graph.add %{arg}, %{inner[2]} : f32[L, E]",
            f"      graph.yield %{last}",
            "    }",
        ]
        self.vectors.append((result, "E"))

    def text(self):
        name, dim = self.vectors[-1]
        params = ["in %x: f32[L, E]"]
        params += [f"weight %{n}: f32[{', '.join(dims)}]" for n, dims in self.weights]
        dims = ", ".join(f"{n} = {e}" for n, e in {"L": self.rows, **self.dims}.items())
        scalars = f"  scalars len = 1..{self.rows}\n" if self.counted else ""
        body = "\n".join(self.lines)
        return (
            "module @random level(graph) holds(transpose_free) {\n"
            f"  dims {dims}\n{scalars}"
            "  options dtype = f32, accumulate = f32\n"
            f"  func @main({', '.join(params)}) -> (f32[L, {dim}]) {{\n"
            f"{body}\n    graph.return %{name}\n  }}\n}}\n"
        )
