"""Hand-written tile programs and a small model for the tests of the Python back end."""

from math import lcm

from meshes import mesh_text

from meshc.backends.python import HostFacts, emit, load_program
from meshc.devices import device
from meshc.ir.parser import parse_module
from meshc.passes.mesh.partition import Partition
from meshc.passes.mesh.place_interleave import PlaceInterleave
from meshc.passes.mesh.select_collective import SelectCollective
from meshc.passes.mesh.shift_kv_cache import ShiftKvCache
from meshc.passes.tile.expand_programs import ExpandPrograms
from meshc.support.diagnostics import Diagnostics
from meshc.support.spans import Source


def module_of(text):
    return parse_module(Source("test.meshir", text))


def tile_module(rows, columns, header, body, name="t", **mesh):
    """A tile module with one program."""
    return module_of(
        f"module @{name} level(tile) {{\n mesh {mesh_text(rows, columns, **mesh)}\n"
        f" {header}\n program @main {{\n{body}\n }}\n}}"
    )


def write(folder, files):
    """Put emitted files into ``folder``."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return folder


def program_of(folder, module, weights=None, order=None, edit=None):
    """The loaded tensor program of a module; ``edit`` changes the text of its phase first."""
    files = emit({"main": module}, HostFacts("test"))
    if edit is not None:
        changed = edit(files["main_phase.py"])
        assert changed != files["main_phase.py"]
        files["main_phase.py"] = changed
    return load_program(write(folder, files)).load(weights or {}, order)


def ceil_div(a, b):
    return -(-a // b)


def ring_route(axis, size):
    """From rank r to rank r - 1 (and from 0 to the last) of an interleaved axis."""
    if size == 1:
        return "{ [y, x] -> [y, x] }"
    pieces = [
        (f"{axis} - 2", f"{axis} mod 2 = 0 and {axis} >= 2"),
        (f"{axis} + 1", f"{axis} = 0"),
        (f"{axis} + 2", f"{axis} mod 2 = 1 and {axis} + 2 < {size}"),
        (f"{2 * size - 3} - {axis}", f"{axis} mod 2 = 1 and {axis} + 2 >= {size}"),
    ]
    point = {"y": "[{}, x]", "x": "[y, {}]"}[axis]
    return "{ " + "; ".join(f"[y, x] -> {point.format(t)} : {c}" for t, c in pieces) + " }"


def ring_gemm(rows, columns, m, k, n, dtype="f32"):
    """MeshGEMM: operands loaded aligned, shifted through one spare slot each."""
    chunks = lcm(rows, columns)
    a, b = chunks // rows, chunks // columns
    mb, kb, nb = ceil_div(m, rows), ceil_div(k, chunks), ceil_div(n, columns)
    return module_of(f"""module @ring_gemm level(tile) {{
      dims M = {m}, K = {k}, N = {n}
      options dtype = {dtype}
      mesh y = {rows} interleaved, x = {columns} interleaved
      buffer %a : {dtype}[{b + 1}, {mb}, {kb}] {{role = in}}
      buffer %w : {dtype}[{a}, {kb}, {nb}] {{role = weight}}
      buffer %b : {dtype}[{a + 1}, {kb}, {nb}]
      buffer %c : f32[{mb}, {nb}] {{role = out}}
      channel @left "{ring_route("x", columns)}"
      channel @up "{ring_route("y", rows)}"
      port @A in {dtype}[M, K] : %a {{lanes = [s, i, j],
        lets = ["chunk = ({a}*rank_y + {b}*rank_x + s) mod {chunks}"],
        element = ["{mb}*rank_y + i", "{kb}*chunk + j"], where = "s < {b}"}}
      port @B in {dtype}[K, N] : %w {{lanes = [s, i, j],
        lets = ["chunk = ({a}*rank_y + {b}*rank_x + s) mod {chunks}"],
        element = ["{kb}*chunk + i", "{nb}*rank_x + j"]}}
      port @C out f32[M, N] : %c {{lanes = [i, j],
        element = ["{mb}*rank_y + i", "{nb}*rank_x + j"]}}
      program @main {{
        tile.copy %b[0 +: {a}], %w
        tile.fill %c {{value = 0.0}}
        tile.for {{var = t, count = {chunks}}} {{
          %sa = tile.send @left, %a[t mod {b + 1}] {{when = "t < {chunks - 1}"}} : token
          %ra = tile.recv @left, %a[(t + {b}) mod {b + 1}] {{when = "t < {chunks - 1}"}} : token
          %sb = tile.send @up, %b[t mod {a + 1}] {{when = "t < {chunks - 1}"}} : token
          %rb = tile.recv @up, %b[(t + {a}) mod {a + 1}] {{when = "t < {chunks - 1}"}} : token
          tile.gemm %c, %a[t mod {b + 1}], %b[t mod {a + 1}]
            {{accumulate = true, transposed = false}}
          tile.wait %sa, %ra, %sb, %rb
        }}
      }}
    }}""")


def tree_sum(rows, columns, group, lanes=5, combine="add", times=1):
    """K-tree all-reduce along y in two phases of chains and a multicast, ``times`` over."""
    inner = min(group, rows)
    send = f"y mod {inner} >= 1"
    recv = f"y mod {inner} < {inner - 1} and y + 1 < {rows}"
    roots = ceil_div(rows, inner)
    steps = ""
    for n in range(times):
        steps += f"""
        tile.sweep {{rank = "{inner - 1} - y mod {inner}", count = {inner}}} {{
          %r1_{n} = tile.recv @near, %v {{combine = {combine}, when = "{recv}"}} : token
          tile.wait %r1_{n}
          %s1_{n} = tile.send @near, %v {{when = "{send}"}} : token
        }}
        tile.sweep {{rank = "{roots - 1} - floor(y/{inner})", count = {roots},
            when = "y mod {inner} = 0"}} {{
          %r2_{n} = tile.recv @far, %v
            {{combine = {combine}, when = "y + {inner} < {rows}"}} : token
          tile.wait %r2_{n}
          %s2_{n} = tile.send @far, %v {{when = "y >= {inner}"}} : token
        }}
        %s3_{n} = tile.send @cast, %v {{when = "y = 0"}} : token
        %r3_{n} = tile.recv @cast, %v {{when = "y >= 1"}} : token
        tile.wait %s3_{n}, %r3_{n}"""
    return tile_module(
        rows,
        columns,
        f"""dims Y = {rows}, X = {columns}, I = {lanes}
      buffer %v : f32[{lanes}] {{role = in}}
      buffer %w : f32[{lanes}] {{role = out}}
      channel @near "{{ [y, x] -> [y - 1, x] : {send} }}"
      channel @far "{{ [y, x] -> [y - {inner}, x] : y mod {inner} = 0 and y >= {inner} }}"
      channel @cast "{{ [y, x] -> [_y, x] : y = 0 and 1 <= _y and _y < {rows} }}"
        {{multicast = true}}
      port @part in f32[Y, X, I] : %v {{lanes = [i], element = [y, x, i]}}
      port @sums out f32[Y, X, I] : %w {{lanes = [i], element = [y, x, i]}}""",
        f"{steps}\n tile.copy %w, %v",
        name="tree",
    )


def shift_cache(rows, columns, slots, lanes):
    """A cache that keeps its share per row balanced; the output is what every core holds.

    Entry ``pos`` enters at the bottom; with m = pos mod rows, rows beyond m give their oldest
    entry to the row above.
    """
    full = f"pos >= {rows}"
    gives = f"{full} and y > pos mod {rows}"
    takes = f"{full} and y >= pos mod {rows} and y < {rows - 1}"
    stores = f"pos < {rows} and y = pos or {full} and y = {rows - 1}"
    return tile_module(
        rows,
        columns,
        f"""dims Y = {rows}, X = {columns}, S = {slots}, D = {lanes}, C = 2
      scalars pos = 0..{rows * slots - 1}
      buffer %new : f32[{lanes}] {{role = in}}
      buffer %cache : f32[{slots}, {lanes}] {{role = state}}
      buffer %state : i32[2] {{role = state}}
      buffer %oldest : f32[{lanes}]
      buffer %risen : f32[{lanes}]
      channel @up "{{ [y, x] -> [y - 1, x] : y >= 1 }}"
      port @entry in f32[X, D] : %new {{lanes = [i], element = [x, i]}}
      port @held out f32[Y, X, S, D] : %cache {{lanes = [s, i], element = [y, x, s, i]}}
      port @counts out i32[Y, X, C] : %state {{lanes = [c], element = [y, x, c]}}""",
        f"""
        tile.ring_oldest %oldest, %cache, %state {{when = "{gives}"}}
        tile.ring_drop %state {{capacity = {slots}, when = "{gives}"}}
        %s = tile.send @up, %oldest {{when = "{gives}"}} : token
        %r = tile.recv @up, %risen {{when = "{takes}"}} : token
        tile.wait %s, %r
        tile.ring_push %cache, %risen, %state {{when = "{takes}"}}
        tile.ring_grow %state {{when = "{takes}"}}
        tile.ring_push %cache, %new, %state {{when = "{stores}"}}
        tile.ring_grow %state {{when = "{stores}"}}""",
        name="cache",
    )


LAYER = """
        %n1 = graph.rms_norm %x, %g1 {dim = E, eps = 1e-05} : f32[L, E]
        %q, %k, %v = graph.matmul %n1, %wq, %wk, %wv {contract = [E]}
          : f32[L, H, D], f32[L, G, D], f32[L, G, D]
        %qr = graph.rope %q {dim = D, rows = L, theta = 100.0, style = interleaved} : f32[L, H, D]
        %kr = graph.rope %k {dim = D, rows = L, theta = 100.0, style = interleaved} : f32[L, G, D]
        %kc = graph.append %kp, %kr {dim = S, rows = L} : f32[S, G, D]
        %vc = graph.append %vp, %v {dim = S, rows = L} : f32[S, G, D]
        %s = graph.matmul %qr, %kc {contract = [D], group = [H, G]} : f32[L, H, S]
        %t = graph.scale %s {factor = 0.5} : f32[L, H, S]
        %p = graph.softmax %t {dim = S, mask = causal, rows = L} : f32[L, H, S]
        %o = graph.matmul %p, %vc {contract = [S], group = [H, G]} : f32[L, H, D]
        %a = graph.matmul %o, %wo {contract = [H, D]} : f32[L, E]
        %x1 = graph.add %x, %a : f32[L, E]
        %n2 = graph.rms_norm %x1, %g2 {dim = E, eps = 1e-05} : f32[L, E]
        %gate, %up = graph.matmul %n2, %wg, %wu {contract = [E]} : f32[L, F], f32[L, F]
        %act = graph.silu %gate : f32[L, F]
        %h = graph.mul %act, %up : f32[L, F]
        %d = graph.matmul %h, %wd {contract = [F]} : f32[L, E]
        %x2 = graph.add %x1, %d : f32[L, E]
        graph.yield %x2, %kc, %vc"""

STACKS = {
    "g1": "E",
    "wq": "E, H, D",
    "wk": "E, G, D",
    "wv": "E, G, D",
    "wo": "H, D, E",
    "g2": "E",
    "wg": "E, F",
    "wu": "E, F",
    "wd": "F, E",
}
EXTENTS = {"N": 2, "E": 10, "H": 6, "G": 2, "D": 4, "F": 14, "V": 13}
CAPACITY = 11


def graph_of(rows):
    """A transformer of two layers at graph level: decode for one row, prefill for more."""
    extents = {**EXTENTS, "L": rows, "S": CAPACITY}
    scalar = f"pos = 0..{CAPACITY - 1}" if rows == 1 else f"len = 1..{rows}"
    phase = "decode" if rows == 1 else "prefill"
    params = ", ".join(f"weight %{n}s: f32[N, {d}]" for n, d in STACKS.items())
    stacks = ", ".join(f"%{n}s" for n in STACKS)
    slices = ", ".join(f"%{n}: f32[{d}]" for n, d in STACKS.items())
    return module_of(f"""module @model level(graph) holds(transpose_free) {{
      dims {", ".join(f"{n} = {e}" for n, e in extents.items())}
      scalars {scalar}
      options phase = {phase}
      func @model(in %x0: f32[L, E], {params}, weight %gf: f32[E], weight %wl: f32[E, V],
          state %ks: f32[N, S, G, D], state %vs: f32[N, S, G, D])
          -> (f32[L, V], f32[N, S, G, D], f32[N, S, G, D]) {{
        %y, %kn, %vn = graph.repeat %x0, {stacks}, %ks, %vs {{dim = N}}
          : f32[L, E], f32[N, S, G, D], f32[N, S, G, D]
          (%x: f32[L, E], {slices}, %kp: f32[S, G, D], %vp: f32[S, G, D]) {{{LAYER}
        }}
        %z = graph.rms_norm %y, %gf {{dim = E, eps = 1e-05}} : f32[L, E]
        %logits = graph.matmul %z, %wl {{contract = [E]}} : f32[L, V]
        graph.return %logits, %kn, %vn
      }}
    }}""")


def model_weights(rng):
    """Random weights of the transformer, with a table of embeddings."""
    shapes = {n: ("N", *d.split(", ")) for n, d in STACKS.items()}
    found = {
        f"{n}s": rng.standard_normal([EXTENTS[d] for d in dims]) / 3 for n, dims in shapes.items()
    }
    extents = EXTENTS["E"], EXTENTS["V"]
    found |= {"gf": rng.standard_normal(extents[0]), "wl": rng.standard_normal(extents)}
    found["table"] = rng.standard_normal(extents[::-1])
    return {name: array.astype("float32") for name, array in found.items()}


def lowered(module, grid, algo="auto", policy="shift"):
    """The tile module of a graph module."""
    report = Diagnostics()
    module.device = device("ideal")
    for a_pass in (
        Partition(grid),
        PlaceInterleave(),
        SelectCollective(algo),
        ShiftKvCache(policy),
        ExpandPrograms(),
    ):
        module = a_pass.run(module, report)
    return module


def model_files(grid, phases=("prefill", "decode"), **how):
    """Files of the transformer's program."""
    rows = {"decode": 1, "prefill": 8}
    modules = {phase: lowered(graph_of(rows[phase]), grid, **how) for phase in phases}
    return emit(modules, HostFacts("tiny", "table", EXTENTS["V"], CAPACITY, (2,)))


def relayed_sum(rows, columns, dtype):
    """Row 0 gets the sums along y, then, on two channels in turn, the largest values."""
    ends = {"last": f"y = {rows - 1}", "first": "y = 0"}
    even, odd = (f"y >= 1 and y <= {rows - 2} and y mod 2 = {p}" for p in (0, 1))
    up = "[y, x] -> [y - 1, x] : y >= 1"
    last = "ab"[(rows - 1) % 2]
    return module_of(f"""module @relayed level(tile)
        holds(channels_matched, deadlock_free, guards_cover) {{
      dims Y = {rows}, X = {columns}, I = 4
      options dtype = {dtype}
      mesh y = {rows}, x = {columns}
      buffer %v : {dtype}[4] {{role = in}}
      buffer %s : {dtype}[4] {{role = out}}
      buffer %m : {dtype}[4] {{role = out}}
      channel @up "{{ {up} }}"
      channel @a "{{ {up} and y mod 2 = 0 }}"
      channel @b "{{ {up} and y mod 2 = 1 }}"
      port @part in {dtype}[Y, X, I] : %v {{lanes = [i], element = ["y", "x", "i"]}}
      port @sums out {dtype}[Y, X, I] : %s {{lanes = [i], element = ["y", "x", "i"]}}
      port @most out {dtype}[Y, X, I] : %m {{lanes = [i], element = ["y", "x", "i"]}}
      program @main {{
        tile.copy %s, %v
        tile.copy %m, %v
        tile.sweep {{rank = "{rows - 1} - y", count = {rows}}} {{
          %s0 = tile.send @up, %s {{when = "{ends["last"]}"}} : token
          %p0 = tile.relay @up, @up, %s {{when = "y >= 1 and y <= {rows - 2}"}} : token
          %r0 = tile.recv @up, %s {{combine = add, when = "{ends["first"]}"}} : token
        }}
        tile.sweep {{rank = "{rows - 1} - y", count = {rows}}} {{
          %s1 = tile.send @{last}, %m {{when = "{ends["last"]}"}} : token
          %p1 = tile.relay @b, @a, %m {{combine = max, when = "{even}"}} : token
          %p2 = tile.relay @a, @b, %m {{combine = max, when = "{odd}"}} : token
          %r1 = tile.recv @b, %m {{combine = max, when = "{ends["first"]}"}} : token
        }}
      }}
    }}""")
