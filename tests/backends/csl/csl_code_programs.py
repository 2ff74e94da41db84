"""Programs that decode weights which stay quantised, random codes for them, and their numbers by
NumPy from the formats' definitions."""

import numpy as np

KINDS = {"f16": np.float16, "f32": np.float32}


def program(form, groups, layers, columns, first, count, dtype):
    """A module that decodes ``count`` columns from ``first`` on of each layer's matrix; every core
    of two has rows of its own."""
    rows = groups * form.group
    least = form.least is not None
    kept = {"scales": "f16", **({"least": str(form.least)} if least else {})}
    buffers = [
        f"  buffer %w.{n} : {k}[{layers}, {groups}, {columns}] {{role = weight}}"
        for n, k in kept.items()
    ]

    def lanes(rows):
        return f'{{lanes = [n, k, f], element = [n, "k + {rows}*y", f]}}'

    ports = [f"  port @{n} in {k}[N, G, F] : %w.{n} {lanes(groups)}" for n, k in kept.items()]
    views = [f"%w.{n}[n, :, {first} +: {count}]" for n in ("codes", *kept)]
    zero = f"{{group = {form.group}, zero = {form.zero}, lifted = {str(least).lower()}}}"
    return "\n".join([
        "module @m level(tile) {",
        f"  dims N = {layers}, K = {2 * rows}, F = {columns}, G = {2 * groups}, C = {count}",
        "  mesh y = 2, x = 1",
        f"  buffer %w.codes : {form.codes}[{layers}, {rows}, {columns}] {{role = weight}}",
        *buffers,
        f"  buffer %y : {dtype}[{layers}, {rows}, {count}] {{role = out}}",
        f"  port @codes in {form.codes}[N, K, F] : %w.codes {lanes(rows)}",
        *ports,
        f"  port @y out {dtype}[N, K, C] : %y {lanes(rows)}",
        "  program @main {",
        f"    tile.for {{var = n, count = {layers}}} {{",
        f"      tile.dequantise %y[n], {', '.join(views)} {zero}",
        "    }",
        "  }",
        "}",
        "",
    ])  # fmt: skip


def tensors(form, groups, layers, columns, seed):
    """Random codes of two cores, all of them and the numbers of their groups, of all sizes."""
    random = np.random.default_rng(seed)
    rows = 2 * groups * form.group
    found = {
        "codes": random.integers(0, 1 << form.codes.bits, (layers, rows, columns)).astype(np.uint8)
    }

    def numbers(kind):
        sizes = 2.0 ** random.integers(-24, 9, (layers, 2 * groups, columns))
        return (random.standard_normal(sizes.shape) * sizes).astype(kind)

    found["scales"] = numbers(np.float16)
    if form.least is not None:
        found["least"] = numbers(KINDS[str(form.least)])
    return found


def decoded(form, given, first, count, dtype):
    """The numbers, element by element from the definition of the format, rounded once from f32."""
    codes = given["codes"][:, :, first : first + count].astype(np.float32)

    def of_rows(name):
        return (
            given[name][:, :, first : first + count].astype(np.float32).repeat(form.group, axis=1)
        )

    found = (codes - np.float32(form.zero)) * of_rows("scales")
    if form.least is not None:
        found = found + of_rows("least")
    with np.errstate(over="ignore"):
        return found.astype(KINDS[dtype])
