"""Hand-written tile programs for the interpreter's tests, as text for a mesh of any shape."""

from math import lcm

from meshes import mesh_text

from meshc.ir.parser import parse_module
from meshc.support.spans import Source


def module_of(text):
    return parse_module(Source("test.meshir", text))


def tile_module(rows, columns, body, header="", **mesh):
    """A tile module with one program."""
    return module_of(
        f"module @t level(tile) {{\n mesh {mesh_text(rows, columns, **mesh)}\n"
        f" {header}\n program @main {{\n{body}\n }}\n}}"
    )


def ceil_div(a, b):
    return -(-a // b)


def ring_route(axis, size):
    """Route from rank r to rank r - 1 (the last rank follows the first) of an interleaved axis."""
    other = {"y": "x", "x": "y"}[axis]

    def piece(target, cond):
        point = {axis: target, other: other}
        return f"[y, x] -> [{point['y']}, {point['x']}] : {cond}"

    if size == 1:
        return "{ [y, x] -> [y, x] }"
    return (
        "{ "
        + "; ".join(
            [
                piece(f"{axis} - 2", f"{axis} mod 2 = 0 and {axis} >= 2"),
                piece("1", f"{axis} = 0"),
                piece(f"{axis} + 2", f"{axis} mod 2 = 1 and {axis} + 2 < {size}"),
                piece(f"{2 * size - 3} - {axis}", f"{axis} mod 2 = 1 and {axis} + 2 >= {size}"),
            ]
        )
        + " }"
    )


def mesh_gemm(rows, columns, m, k, n, spare=1):
    """C = A B by cyclic shifts along two interleaved rings (WaferLLM section 5.3).

    The contraction dim is cut into lcm(rows, columns) chunks, so that any mesh shape works; both
    operands are loaded aligned. ``spare`` slots per ring are free to receive into.
    """
    chunks = lcm(rows, columns)
    a, b = chunks // rows, chunks // columns
    mb, kb, nb = ceil_div(m, rows), ceil_div(k, chunks), ceil_div(n, columns)
    more = f"t < {chunks - 1}"
    return module_of(f"""module @mesh_gemm level(tile) {{
      dims M = {m}, K = {k}, N = {n}
      mesh y = {rows} interleaved, x = {columns} interleaved
      buffer %a : f32[{b + spare}, {mb}, {kb}] {{role = in}}
      buffer %b : f32[{a + spare}, {kb}, {nb}] {{role = weight}}
      buffer %c : f32[{mb}, {nb}] {{role = out}}
      channel @left "{ring_route("x", columns)}"
      channel @up "{ring_route("y", rows)}"
      port @A in f32[M, K] : %a {{lanes = [s, i, j],
        lets = ["chunk = ({a}*rank_y + {b}*rank_x + s) mod {chunks}"],
        element = ["{mb}*rank_y + i", "{kb}*chunk + j"], where = "s < {b}"}}
      port @B in f32[K, N] : %b {{lanes = [s, i, j],
        lets = ["chunk = ({a}*rank_y + {b}*rank_x + s) mod {chunks}"],
        element = ["{kb}*chunk + i", "{nb}*rank_x + j"], where = "s < {a}"}}
      port @C out f32[M, N] : %c {{lanes = [i, j],
        element = ["{mb}*rank_y + i", "{nb}*rank_x + j"]}}
      program @main {{
        tile.fill %c {{value = 0.0}}
        tile.for {{var = t, count = {chunks}}} {{
          %sa = tile.send @left, %a[t mod {b + spare}] {{when = "{more}"}} : token
          %ra = tile.recv @left, %a[(t + {b}) mod {b + spare}] {{when = "{more}"}} : token
          %sb = tile.send @up, %b[t mod {a + spare}] {{when = "{more}"}} : token
          %rb = tile.recv @up, %b[(t + {a}) mod {a + spare}] {{when = "{more}"}} : token
          tile.gemm %c, %a[t mod {b + spare}], %b[t mod {a + spare}]
            {{accumulate = true, transposed = false}}
          tile.wait %sa, %ra, %sb, %rb
        }}
      }}
    }}""")


def tree_strides(size, depth):
    """(stride, group) of each phase of a K-tree over ``size`` cores."""
    group = max(2, next(g for g in range(1, size + 1) if g**depth >= size))
    found = [(1, group)]
    while found[-1][0] * group < size:
        found.append((found[-1][0] * group, group))
    return found


def tree_all_reduce(rows, columns, depth, combine="add", lanes=3):
    """All-reduce along y: chains inside groups, then between roots, then a multicast from row 0."""
    channels, steps = [], []
    for phase, (stride, group) in enumerate(tree_strides(rows, depth) if rows > 1 else []):
        size = stride * group
        send = f"y mod {stride} = 0 and y mod {size} >= {stride}"
        recv = f"y mod {stride} = 0 and y mod {size} < {size - stride} and y + {stride} < {rows}"
        channels.append(f'channel @up{phase} "{{ [y, x] -> [y - {stride}, x] : {send} }}"')
        rank = f"{group - 1} - floor((y mod {size})/{stride})"
        steps.append(f"""
        tile.sweep {{rank = "{rank}", count = {group}}} {{
          %r{phase} = tile.recv @up{phase}, %v {{combine = {combine}, when = "{recv}"}} : token
          tile.wait %r{phase}
          %s{phase} = tile.send @up{phase}, %v {{when = "{send}"}} : token
        }}""")
    if rows > 1:
        channels.append(
            f'channel @down "{{ [y, x] -> [_y, x] : y = 0 and 1 <= _y and _y < {rows} }}"'
            " {multicast = true}"
        )
        steps.append("""
        %s = tile.send @down, %v {when = "y = 0"} : token
        %r = tile.recv @down, %v {when = "y >= 1"} : token
        tile.wait %s, %r""")
    return module_of(f"""module @tree level(tile) {{
      dims Y = {rows}, X = {columns}, I = {lanes}
      mesh y = {rows}, x = {columns}
      buffer %v : f32[{lanes}] {{role = in}}
      buffer %w : f32[{lanes}] {{role = out}}
      {chr(10).join(channels)}
      port @part in f32[Y, X, I] : %v {{lanes = [i], element = [y, x, i]}}
      port @sums out f32[Y, X, I] : %w {{lanes = [i], element = [y, x, i]}}
      program @main {{
        {"".join(steps)}
        tile.copy %w, %v
      }}
    }}""")


def split_token(heads, cores, lanes, capacity):
    """Decode attention of one token, its KV cache dealt over the cores of a cluster.

    Every row of the mesh is one head; each core scores its own tokens, then all gather the
    statistics and partial outputs and combine them (ClusterFusion's SplitToken).
    """
    slots = ceil_div(capacity, cores)
    channels = "\n".join(
        f'channel @push{s} "{{ [y, x] -> [y, (x + {s}) mod {cores}] }}"' for s in range(1, cores)
    )
    moves = "\n".join(
        f"""
        %s{what}{s} = tile.send @push{s}, %{what}[x] : token
        %r{what}{s} = tile.recv @push{s}, %{what}[(x - {s}) mod {cores}] : token"""
        for what in ("top", "sum", "acc")
        for s in range(1, cores)
    )
    waits = ", ".join(
        f"%{d}{what}{s}" for what in ("top", "sum", "acc") for s in range(1, cores) for d in "sr"
    )
    wait = f"tile.wait {waits}" if waits else ""
    return module_of(f"""module @split_token level(tile) {{
      dims H = {heads}, S = {capacity}, D = {lanes}
      scalars pos = 0..{capacity - 1}
      mesh y = {heads}, x = {cores}
      buffer %q : f32[{lanes}] {{role = in}}
      buffer %kn : f32[{lanes}] {{role = in}}
      buffer %vn : f32[{lanes}] {{role = in}}
      buffer %k : f32[{slots}, {lanes}] {{role = state}}
      buffer %v : f32[{slots}, {lanes}] {{role = state}}
      buffer %s : f32[{slots}]
      buffer %top : f32[{cores}]
      buffer %sum : f32[{cores}]
      buffer %acc : f32[{cores}, {lanes}]
      buffer %most : f32[1]
      buffer %weight : f32[{cores}]
      buffer %whole : f32[1]
      buffer %out : f32[{lanes}] {{role = out}}
      {channels}
      port @q in f32[H, D] : %q {{lanes = [i], element = [y, i]}}
      port @kn in f32[H, D] : %kn {{lanes = [i], element = [y, i]}}
      port @vn in f32[H, D] : %vn {{lanes = [i], element = [y, i]}}
      port @o out f32[H, D] : %out {{lanes = [i], element = [y, i], where = "x = 0"}}
      program @main {{
        tile.copy %k[floor(pos/{cores})], %kn {{when = "pos mod {cores} = x"}}
        tile.copy %v[floor(pos/{cores})], %vn {{when = "pos mod {cores} = x"}}
        tile.gemm %s as [1, {slots}], %q as [1, {lanes}], %k
          {{accumulate = false, transposed = true}}
        tile.mask_causal %s as [1, {slots}]
          {{query = pos, query_step = 0, key = x, key_step = {cores}, limit = {capacity}}}
        tile.row_max %top[x], %s
        tile.fill %top[x] {{value = -1e30, when = "pos < x"}}
        tile.exp_sub %s, %s, %top[x]
        tile.row_sum %sum[x], %s
        tile.gemm %acc[x] as [1, {lanes}], %s as [1, {slots}], %v
          {{accumulate = false, transposed = false}}
        {moves}
        {wait}
        tile.row_max %most[0], %top
        tile.exp_sub %weight, %top, %most[0]
        tile.mul %sum, %sum, %weight
        tile.row_sum %whole[0], %sum
        tile.gemm %out as [1, {lanes}], %weight as [1, {cores}], %acc
          {{accumulate = false, transposed = false}}
        tile.div %out, %out, %whole[0]
      }}
    }}""")


def relay_sum(rows, columns, combine="add", dtype="f32", rounds=1):
    """Sums along y, passed on element by element; row 0 ends with them, the others keep theirs."""
    body = ""
    for n in range(rounds):
        body += f"""
        tile.sweep {{rank = "{rows - 1} - y", count = {rows}}} {{
          %s{n} = tile.send @up, %v {{when = "y = {rows - 1}"}} : token
          %p{n} = tile.relay @up, @up, %v
            {{combine = {combine}, when = "y >= 1 and y <= {rows - 2}"}} : token
          %r{n} = tile.recv @up, %v {{combine = {combine}, when = "y = 0"}} : token
        }}"""
    return module_of(f"""module @relay_sum level(tile)
        holds(channels_matched, deadlock_free, guards_cover) {{
      dims Y = {rows}, X = {columns}, I = 3
      mesh y = {rows}, x = {columns}
      buffer %v : {dtype}[3] {{role = in}}
      buffer %w : f32[3] {{role = out}}
      channel @up "{{ [y, x] -> [y - 1, x] : y >= 1 }}"
      port @part in {dtype}[Y, X, I] : %v {{lanes = [i], element = ["y", "x", "i"]}}
      port @sums out f32[Y, X, I] : %w {{lanes = [i], element = ["y", "x", "i"]}}
      program @main {{{body}
        tile.copy %w, %v
      }}
    }}""")
