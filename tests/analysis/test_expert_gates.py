"""Which products experts compute for the rows alone that they are sent."""

from pathlib import Path

import pytest

import meshc
from meshc.analysis.expert_dims import routes_of

MODEL = """model experts(E=4, F=4, X=3, K=2, V=6, layers=1) {{
  param table[V, E]
  main(tokens[B, L]) {{
    x = embed(tokens, table)
    repeat layers {{
      param router[E, X], w_gate[E, X, F], w_up[E, X, F], w_down[X, F, E]
      gates = top_k(softmax(x @ router), K)
      gate = x @ w_gate
      up = x @ w_up
      {lines}
      x = x + (gate * up * gates) @ w_down
    }}
    return x @ transpose(table)
  }}
}}
"""


@pytest.mark.parametrize(
    "line", ["gate = gate * sigmoid(gate)", "gate = gate + up; up = up + gate"]
)
def test_values_that_are_read_twice_are_followed_once(tmp_path: Path, line: str) -> None:
    """Each line doubles the ways to the products: two to the 60th of them have no end."""
    path = tmp_path / "experts.mesh"
    lines = "\n      ".join(line.replace("; ", "\n      ").splitlines() * 60)
    path.write_text(MODEL.format(lines=lines))
    (module,) = meshc.compile(path, seq=4, compile_to="graph").modules.values()
    routes = routes_of(module)
    assert len(routes.weighted) == 1 and len(routes.by) == 2
    assert {gates.count for gates in routes.by.values()} == {2}
