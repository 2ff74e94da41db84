"""Programs that are mostly right, from grammars: they reach what damaged texts never do."""

from __future__ import annotations

from random import Random

_EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 12, 31)


def model_text(random: Random) -> str:
    """A ``.mesh`` program of a few statements over small dims."""
    head = ", ".join(f"{name}={random.choice(_EXTENTS)}" for name in "MNK")
    body = _Body(random)
    lines = [body.statement() for _ in range(random.randint(0, 5))]
    if random.random() < 0.4:
        body.scope = list(body.scope)
        inner = [f"  {body.statement(carried=True)}" for _ in range(random.randint(1, 3))]
        if random.random() < 0.5:
            inner = ["  param r[M, N]", "  x = x + r", *inner]
        lines += ["repeat layers {", *inner, "}"]
        lines += [body.statement() for _ in range(random.randint(0, 2))]
    results = random.sample(body.scope, min(len(body.scope), random.choice((1, 1, 1, 2))))
    returned = random.choice(("{}", "{}", "{}", "{} @ w", "transpose({})"))
    dims = {"{}": "[M, N]", "{} @ w": "[M, K]", "transpose({})": "[N, M]"}[returned]
    lines.append("return " + ", ".join(returned.format(name) for name in results))
    kind = random.choice(("f32", "f16", "bf16", "f32"))
    text = "\n    ".join(lines)
    return (
        f"model m({head}, layers={random.choice((1, 2, 3))}) {{\n"
        f"  weights {kind}  accumulate {random.choice(('f32', kind))}\n"
        f"  param w[N, K], v[K, N], g[N], u[M, N], b[N, K]\n"
        f"  main(x[M, N]) -> {', '.join([dims] * len(results))} {{\n    {text}\n  }}\n}}\n"
    )


class _Body:
    """Statements over the tensors [M, N] that are defined so far."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.scope = ["x", "u"]

    def statement(self, carried: bool = False) -> str:
        """An assignment; one that is ``carried`` changes what is there already."""
        text = self.expression()
        name = self.random.choice(["x"] if carried else ["x", "y", "z", "t"])
        if name not in self.scope:
            self.scope.append(name)
        return f"{name} = {text}"

    def expression(self) -> str:
        random = self.random
        one, two = random.choice(self.scope), random.choice(self.scope)
        factor = random.choice(("0.5", "2", "1e-3", "M", "0", "sqrt(N)", "-1"))
        return random.choice(
            (
                f"{one} + {two}",
                f"{one} * {two}",
                f"{one} - {two}",
                f"{one} / {factor}",
                f"{one} * {factor}",
                f"silu({one})",
                f"gelu({one})",
                f"gelu({one}, form=tanh)",
                f"rms_norm({one}, g, 1e-5)",
                f"softmax({one})",
                f"softmax({one}, dim=M)",
                f"({one} @ w) @ v",
                f"silu({one} @ w) @ v",
                f"{one} * g",
                f"{one} @ (w * b) @ v",
                f"transpose(transpose({one}))",
                f"softmax({one} @ w) @ v",
                f"(silu({one} @ w) * ({two} @ w)) @ v",
            )
        )


_PASSES = (
    "canonicalize", "eliminate-transpose", "fuse-chunk", "partition", "select-gemm",
    "place-interleave", "shift-kv-cache", "select-collective", "split-regions", "expand-programs",
    "allocate-routes", "schedule-tasks", "plan-memory",
)  # fmt: skip
_OPTIONS = {
    "partition": ("grid",),
    "select-gemm": ("algo",),
    "select-collective": ("algo", "k"),
    "shift-kv-cache": ("policy",),
    "split-regions": ("regions",),
    "place-interleave": ("axes",),
}
_VALUES = (
    "1x1", "2x2", "3x2", "1x5", "0x0", "4x4", "auto", "cannon", "summa", "cyclic_shift", "ring",
    "allgather", "k_tree", "pipeline", "two_phase", "tree", "shift", "concat", "cyclic", "0", "1",
    "2", "3", "-1", "99999", "[y,x]", "[y]", '""', "true", "inf", "split_head",
)  # fmt: skip


def pipeline_text(random: Random) -> str:
    """A text of passes, in their usual order or in any, with options that may be none."""
    if random.random() < 0.7:
        start = random.randrange(len(_PASSES))
        names = [p for p in _PASSES[start:] if random.random() < 0.9]
        names = names[: random.randint(1, len(names) or 1)]
    else:
        names = random.choices(_PASSES, k=random.randint(0, 5))
    return ",".join(_with_options(random, name) for name in names)


def _with_options(random: Random, name: str) -> str:
    known = _OPTIONS.get(name, ("grid",))
    if random.random() < 0.6:
        return name
    chosen = random.sample(known, random.randint(1, len(known)))
    return name + "{" + ",".join(f"{o}={random.choice(_VALUES)}" for o in chosen) + "}"


_CSL_TYPES = ("i16", "u16", "i32", "u32", "f32", "f16", "bool", "u8")


def csl_body(random: Random) -> str:
    """Statements for the body of a CSL function with ``out``, ``vec`` and ``n`` in scope."""
    lines = []
    for number in range(random.randint(1, 6)):
        kind = random.choice(_CSL_TYPES[:6])
        lines.append(
            random.choice(
                (
                    f"var a{number}: {kind} = {_csl_value(random)};",
                    f"var a{number} = @as({kind}, {_csl_value(random)});",
                    f"const c{number} = {_csl_value(random)};",
                    f"out[{_csl_value(random)}] = {_csl_value(random)};",
                    f"out[n] = @as(f32, {_csl_value(random)});",
                    "@fadds(vec, vec, vec);",
                    f"@fmovs(vec, {_csl_value(random)});",
                    "@fmacs(vec, vec, vec, 2.0);",
                    f"@fmovs(@increment_dsd_offset(vec, {_csl_value(random)}, f32), 1.0);",
                    f"for (@range({kind}, {_csl_value(random)})) |i| {{ out[0] += 1.0; }}",
                    f"while (n < {_csl_value(random)}) : (n += 1) {{ out[1] = 2.0; }}",
                    f"if (n == {_csl_value(random)}) {{ out[2] = 1.0; }} else {{ n = 3; }}",
                    f"n = switch (n) {{ {random.randint(0, 9)} => 1, else => 2 }};",
                    f"var p{number} = @ptrcast([*]{kind}, &out); n = @as(i16, p{number}[n]);",
                    f"n = @bitcast(i16, @as(u16, {_csl_value(random)}));",
                    "n = @bitcast(i16, @as(f16, out[0]));",
                )
            )
        )
    return "\n".join(lines)


def _csl_value(random: Random, depth: int = 2) -> str:
    if depth and random.random() < 0.5:
        op = random.choice(("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "==", "<"))
        return f"({_csl_value(random, depth - 1)} {op} {_csl_value(random, depth - 1)})"
    return random.choice(
        ("0", "1", "2", "3", "-1", "7", "70000", "0xffff", "1.5", "n", "out[0]", "true", "1e30",
         "@as(f16, 0.1)", "@as(u16, 65535)", "@as(i32, n)", "4294967296")
    )  # fmt: skip
