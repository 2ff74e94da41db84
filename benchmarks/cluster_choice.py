"""Which clusters of blocks attention is fastest in as a program of tasks.

    python benchmarks/cluster_choice.py [--device h200] [--short]

A table in Markdown, which docs/step-times.md repeats: layers of multi-head attention over a
residual of 4096 values, batch 1, f16, in a step of nothing else; predicted time of a layer by
the event model (``meshc/cost/tasks``) for clusters of 1 to 16 blocks and for none, and what it is
made of in the fastest clusters.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import meshc
from meshc.cost.cluster_sizes import Attention
from meshc.cost.tasks.phase_times import StepTime, step_time
from meshc.devices import Device, device
from meshc.ir.clone import clone_module
from meshc.ir.module import Module

HIDDEN = 4096
HEADS = (32, 64, 128)
HEAD_SIZES = (64, 128, 256)
CONTEXTS = (1024, 4096, 16384)
SIZES = (1, 2, 4, 8, 16)
LAYERS = 3
MODEL = """model attention(E={hidden}, H={heads}, G={groups}, D={head}, layers={layers}, eps=1e-5, theta=10000.0) {{
  weights f16  accumulate f32
  heads H share G
  main(x[B, L, E]) -> [B, L, E] {{
    repeat layers {{
      param norm[E], wq[E, H, D], wk[E, G, D], wv[E, G, D], wo[H, D, E]
      h = rms_norm(x, norm, eps)
      q = rope(h @ wq, theta)
      k = append(cache.k, rope(h @ wk, theta))
      v = append(cache.v, h @ wv)
      s = softmax(q @ transpose(k) / sqrt(D), mask = causal)
      x = x + (s @ v) @ wo
    }}
    return x
  }}
}}
"""  # noqa: E501
BEFORE, BEHIND = "canonicalize,eliminate-transpose", "meet,fold-scratch"


@dataclass(frozen=True)
class Layer:
    """Microseconds of a layer of attention, by what blocks spend them on."""

    seconds: float
    memory: float
    computing: float
    meeting: float
    idle: float

    @classmethod
    def of(cls, time: StepTime) -> Layer:
        """The phases that every layer has."""
        own = [phase.spent for phase in time.phases if phase.times >= LAYERS - 1]

        def total(name: str) -> float:
            return 1e6 * sum(getattr(spent, name) for spent in own) / LAYERS

        return cls(*(total(name) for name in ("seconds", "memory", "computing", "meeting", "idle")))


def graph_of(target: Device, shape: Attention, context: int) -> Module:
    """The graph of a step of layers of attention."""
    text = MODEL.format(
        hidden=shape.hidden, heads=shape.heads, groups=shape.kv_heads, head=shape.head,
        layers=LAYERS,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        model = Path(folder) / "attention.mesh"
        model.write_text(text, encoding="utf-8")
        compiled = meshc.compile(
            str(model), dtype="f16", compile_to="graph", phase="decode", seq=context + 1,
            device=target.name,
        )  # fmt: skip
    return compiled.modules["decode"]


def layer(graph: Module, context: int, cluster: int) -> Layer:
    """The predicted time of a layer in clusters of so many blocks, with 0 in none."""
    grain = f"heads=true,splits={cluster}" if cluster else "tokens=0"
    placed = f"place-tasks,fuse-cluster{{cluster={cluster}}}" if cluster else "place-tasks"
    passes = meshc.parse_pipeline(f"{BEFORE},expand-tasks{{{grain}}},{placed},{BEHIND}")
    module = meshc.PassManager(passes).run(clone_module(graph))
    return Layer.of(step_time(module, {"pos": context}))


def table(target: Device, shapes: Sequence[Attention], contexts: Sequence[int]) -> str:
    """The choices, a row for each shape and number of cached tokens."""
    header = (
        "heads", "head", "cached", "blocks",
        *(f"us of {n}" for n in SIZES), "of none", "memory, computing, meeting, idle",
    )  # fmt: skip
    return markdown(header, _rows(target, shapes, contexts))


def _rows(
    target: Device, shapes: Sequence[Attention], contexts: Sequence[int]
) -> Iterator[Sequence[object]]:
    for shape in shapes:
        for context in contexts:
            graph = graph_of(target, shape, context)
            found = {n: layer(graph, context, n) for n in (*SIZES, 0)}
            best = min(SIZES, key=lambda n: found[n].seconds)
            one = found[best]
            spent = (one.memory, one.computing, one.meeting, one.idle)
            yield (
                shape.heads, shape.head, context, best,
                *(f"{found[n].seconds:.1f}" for n in (*SIZES, 0)),
                ", ".join(f"{part:.1f}" for part in spent),
            )  # fmt: skip
            print(f"{shape.heads} heads of {shape.head}, {context}", file=sys.stderr)


def markdown(header: Sequence[str], rows: Iterator[Sequence[object]]) -> str:
    """A table without a trailing newline."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="h200")
    parser.add_argument("--short", action="store_true", help="heads of 128 and 4096 tokens alone")
    arguments = parser.parse_args()
    sizes, contexts = ((128,), (4096,)) if arguments.short else (HEAD_SIZES, CONTEXTS)
    shapes = [Attention(HIDDEN, heads, heads, size) for heads in HEADS for size in sizes]
    print(table(device(arguments.device), shapes, contexts))


if __name__ == "__main__":
    main()
