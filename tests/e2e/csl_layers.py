"""Small models of some layers of attention, and wafers of few cores to deal them to."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path

import meshc.devices

DEVICES = Path(meshc.devices.__file__).parent / "data"


def wafer(folder, arch, columns, rows):
    """The device ``arch`` with ``columns`` x ``rows`` cores."""
    text = (DEVICES / f"{arch}.toml").read_text()
    for key, size in (("cores_x", columns), ("cores_y", rows)):
        text, found = re.subn(rf"{key} = {{value = [0-9_]+", f"{key} = {{value = {size}", text)
        assert found == 1
    path = folder / f"{arch}_snake.toml"
    path.write_text(text)
    return str(path)


@dataclass(frozen=True)
class Layers:
    """Layers of attention behind each other: their sizes, and where they lie."""

    N: int
    E: int
    H: int
    G: int
    D: int
    F: int
    V: int

    def text(self, dtype, sums=None):
        """The model in the language; ``sums`` of products are of another type."""
        sizes = {name: size for name, size in asdict(self).items() if name != "G" or self.shared}
        shown = ", ".join(f"{name}={size}" for name, size in sizes.items())
        key = "G" if self.shared else "H"
        return f"""model layers({shown}) {{
  weights {dtype}  accumulate {sums or dtype}
{f"  heads H share G{chr(10)}" if self.shared else ""}  param last[E], head[E, V]
  main(x[B, L, E]) -> [B, L, V] {{
    repeat N {{
      param n1[E], wq[E, H, D], wk[E, {key}, D], wv[E, {key}, D], wo[H, D, E]
      param n2[E], w1[E, F], w2[F, E], w3[E, F]
      h = rms_norm(x, n1)
      q = rope(h @ wq, theta = 100.0)
      keys = append(cache.k, rope(h @ wk, theta = 100.0))
      values = append(cache.v, h @ wv)
      x = x + softmax(q @ transpose(keys) / sqrt(D), mask = causal) @ values @ wo
      h = rms_norm(x, n2)
      x = x + (silu(h @ w1) * (h @ w3)) @ w2
    }}
    return rms_norm(x, last) @ head
  }}
}}
"""

    @property
    def shared(self):
        """Whether heads share keys."""
        return self.H > self.G
