"""Programs of the mesh level that send rows to the cores of their experts and add up what comes
back, and what NumPy makes of them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Routing:
    """``tokens`` rows of ``width`` over ``axis`` of a mesh of ``rows`` x ``columns`` cores, sent to
    ``experts``, which lie over the same axis; ``over`` is the dim that lies over it before: T rows,
    E lanes or nothing. ``back`` is the collective that ends the sum."""

    rows: int
    columns: int
    axis: str
    tokens: int
    width: int
    experts: int
    dtype: str = "f32"
    over: str = "T"
    back: str = "reduce_scatter"

    @property
    def size(self) -> int:
        return self.columns if self.axis == "x" else self.rows

    def split(self, dim: str, extent: int) -> str:
        return f"{dim}_{self.axis}:{-(-extent // self.size)}"

    @property
    def text(self) -> str:
        kind, axis = self.dtype, self.axis
        lying = {"T": self.split("T", self.tokens), "E": self.split("E", self.width), "": ""}
        x = lying[self.over]
        gates = x if self.over == "T" else ""
        over = self.split("X", self.experts)
        lines = [f"%sums = mesh.combine %done, %routes {{dim = X}} : {kind}[T, E]<+{axis}>"]
        end = ""
        if self.back == "all_reduce":
            lines.append(f"%back = mesh.all_reduce %sums {{axis = {axis}}} : {kind}[T, E]<>")
        elif self.back == "reduce_scatter":
            end = lying["T"]
            words = f"mesh.reduce_scatter %sums {{axis = {axis}, dim = T}}"
            lines.append(f"%back = {words} : {kind}[T, E]<{end}>")
        else:
            end = lying["T"]
            lines += [
                f"%first = mesh.reduce %sums {{axis = {axis}}} : {kind}[T, E]<@{axis}>",
                f"%back = mesh.scatter %first {{axis = {axis}, dim = T}} : {kind}[T, E]<{end}>",
            ]
        body, end = "\n    ".join(lines), f"{kind}[T, E]<{end}>"
        rows, scores = f"{kind}[T, E]<{x}>", f"{kind}[T, X]<{gates}>"
        gain, sent, routes = (f"{kind}[{dims}]<{over}>" for dims in ("X, E", "T, X, E", "T, X"))
        return f"""module @dispatch level(mesh) {{
  dims T = {self.tokens}, E = {self.width}, X = {self.experts}
  options dtype = {kind}, accumulate = {kind}
  mesh y = {self.rows}, x = {self.columns}
  func @main(in %rows: {rows}, in %gates: {scores}, weight %gain: {gain}) -> ({end}) {{
    %sent, %routes = mesh.dispatch %rows, %gates {{dim = X, axis = {axis}}} : {sent}, {routes}
    %done = mesh.mul %sent, %gain : {sent}
    {body}
    mesh.return %back
  }}
}}
"""

    def tensors(self, chosen: np.ndarray, seed: int) -> dict[str, np.ndarray]:
        """Rows, what experts have, and gates that are zero where a row is not ``chosen`` [T, X]."""
        rng = np.random.default_rng(seed)
        kind = {"f16": np.float16, "f32": np.float32}[self.dtype]
        gates = np.where(chosen, rng.uniform(0.1, 1, chosen.shape), 0)
        found = {
            "rows": rng.standard_normal((self.tokens, self.width)),
            "gates": gates,
            "gain": rng.standard_normal((self.experts, self.width)),
        }
        return {name: array.astype(kind) for name, array in found.items()}


def expected(tensors: dict[str, np.ndarray], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The sums, and how far they may be off: each term is rounded three times, and each addition
    once, by at most the unit roundoff of the largest sum there can be."""
    rows, gates, gain = (tensors[name].astype(np.float64) for name in ("rows", "gates", "gain"))
    terms = gates[:, :, None] * rows[:, None, :] * gain[None]
    unit = {"f16": 2.0**-11, "f32": 2.0**-24}[dtype] * (gates.shape[1] + 3)
    return terms.sum(1), unit / (1 - unit) * np.abs(terms).sum(1) + 2.0**-24


def routing(kind: str, tokens: int, experts: int, top: int, seed: int) -> np.ndarray:
    """Which experts each row goes to: ``random`` ones, ``one`` for all, ``all`` of them, ``none``,
    or ``few`` rows while the other rows go nowhere."""
    rng = np.random.default_rng(seed)
    chosen = np.zeros((tokens, experts), bool)
    if kind == "all":
        chosen[:] = True
    elif kind == "one":
        chosen[:, rng.integers(experts)] = True
    elif kind != "none":
        count = 1 if kind == "few" else tokens
        for row in rng.permutation(tokens)[:count]:
            chosen[row, rng.permutation(experts)[:top]] = True
    return chosen


ROUTINGS = ("random", "one", "all", "none", "few")


_PRODUCTS = """module @products level(mesh) {{
  dims T = 5, E = 3, F = 4, X = 6
  options dtype = {kind}, accumulate = {total}
  mesh y = 1, x = {columns}
  func @main(in %rows: {kind}[T, E]<>, in %gates: {kind}[T, X]<>,
    weight %weights: {kind}[E, X, F]<{part}>) -> ({total}[T, F]<>) {{
    %sent, %routes = mesh.dispatch %rows, %gates {{dim = X, axis = x}}
      : {kind}[T, X, E]<{part}>, {kind}[T, X]<{part}>
    %done = mesh.expert_gemv %sent, %routes, %weights {{dim = X, contract = [E]}}
      : {total}[T, X, F]<{part}>
    %sums = mesh.combine %done, %routes {{dim = X}} : {total}[T, F]<+x>
    %all = mesh.all_reduce %sums {{axis = x}} : {total}[T, F]<>
    mesh.return %all
  }}
}}
"""


def products(columns: int, kind: str = "f32", total: str = "f32") -> str:
    """A program in which each of six experts multiplies the rows that it is sent by a matrix."""
    part = f"X_x:{-(-6 // columns)}"
    return _PRODUCTS.format(columns=columns, part=part, kind=kind, total=total)


def product_tensors(
    chosen: np.ndarray, kind: str = "f32"
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs of :func:`products` for ``chosen`` [5, 6], and its result. What experts without rows
    have is no number."""
    rng, dtype = np.random.default_rng(1), {"f16": np.float16, "f32": np.float32}[kind]
    gates = np.where(chosen, rng.uniform(0.5, 1, chosen.shape), 0).astype(dtype)
    rows = rng.standard_normal((5, 3)).astype(dtype)
    weights = rng.standard_normal((3, 6, 4)).astype(dtype)
    wanted = np.einsum("tx,te,exf->tf", *(a.astype(np.float64) for a in (gates, rows, weights)))
    weights[:, ~chosen.any(0)] = np.nan
    return {"rows": rows, "gates": gates, "weights": weights}, wanted
