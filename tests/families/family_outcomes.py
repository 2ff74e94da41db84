"""What each family of models gives on each target: logits equal to those of transformers, or a
refusal. The one table; ``docs/families.md`` shows it, and tests hold programs against it.

A row is the type of a model and what of its config changes what targets make of it: a window that
is shorter than the context, experts behind dense layers, factors of RoPE for long contexts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refused:
    """A refusal with this code; ``missing`` is part of its message or notes."""

    code: str
    missing: str


EQUAL = "equal"
Outcome = str | Refused
COLUMNS = {
    "python square": "whole prompts on a square mesh, then steps",
    "python other": "the same on a mesh that is not square",
    "python chunks": "prompts in chunks, then steps (`serving`)",
    "python steps": "prompts token by token (`--phase decode`)",
    "csl whole": "whole prompts, then steps, on the fabric simulator",
    "csl chunks": "prompts in chunks (`--chunk`), then steps",
    "csl steps": "prompts token by token (`--phase decode`)",
    "cuda": "prompts by decode steps, then steps, in the executor",
    "cuda chunks": "prompts many tokens at once (`--chunk`), then steps",
}
"""What is asked of a target. Sequences are longer than windows, so that steps go beyond them."""


@dataclass(frozen=True)
class Row:
    """What is asked gives, by column; ``example`` is a recorded checkpoint among the tests' data,
    empty where there is none."""

    example: str
    outcomes: dict[str, Outcome]


def _row(
    example: str,
    python: Outcome = EQUAL,
    csl: Outcome = EQUAL,
    cuda: Outcome = EQUAL,
    **own: Outcome,
) -> Row:
    """One outcome for all columns of a target, but for those of their ``own``."""
    targets = {"python": python, "csl": csl, "cuda": cuda}
    found = {column: targets[column.split()[0]] for column in COLUMNS}
    own = {name.replace("_", " "): outcome for name, outcome in own.items()}
    assert own.keys() <= found.keys()
    return Row(example, found | own)


_CHUNKS_OF_WINDOWS = Refused("cuda-graph", "has a window that differs from layer to layer")
CHUNKS_OF_EXPERTS = Refused("cuda-graph", "experts")
_CHUNKS_OF_ROPE = Refused("cuda-graph", "differs from layer to layer")
_CHUNKS_CENTRED = Refused("cuda-graph", "graph.centre is part of no kernel")
_CHUNKS_SIDE_BY_SIDE = Refused("cuda-graph", "also gives")
_CHUNKS_OF_SUMS = Refused("cuda-graph", "comes from graph.add, not graph.rms_norm")
_CHUNKS_NORMED_BEHIND = Refused("cuda-graph", "is read by graph.rms_norm, not one graph.add")
_CHUNKS_OF_POSITIONS = Refused("cuda-graph", "adds learned positions")
_LONG = Refused("rope-length", "other frequencies from 6 tokens on")

TABLE: dict[tuple[str, str], Row] = {
    ("llama", ""): _row("tiny/llama-3h1"),
    ("mistral", ""): _row(""),
    ("mistral", "window"): _row("tiny_dense/mistral-6h2"),
    ("qwen2", ""): _row("tiny/qwen2-7h1"),
    ("qwen2", "window"): _row("", cuda_chunks=_CHUNKS_OF_WINDOWS),
    ("qwen3", ""): _row(""),
    ("qwen3", "window"): _row("", cuda_chunks=_CHUNKS_OF_WINDOWS),
    ("gemma", ""): _row("tiny_families/gemma-6h2"),
    ("gemma2", ""): _row("tiny_families/gemma2-3h3-capped-bf16", cuda_chunks=_CHUNKS_NORMED_BEHIND),
    ("gemma2", "window"): _row("tiny_families/gemma2-6h2-window", cuda_chunks=_CHUNKS_OF_WINDOWS),
    ("gemma3_text", ""): _row(
        "tiny_families/gemma3-3h1-capped-bf16", cuda_chunks=_CHUNKS_NORMED_BEHIND
    ),
    ("gemma3_text", "window"): _row(
        "tiny_families/gemma3-6h2-window", cuda_chunks=_CHUNKS_OF_WINDOWS
    ),
    ("granite", ""): _row("tiny_scaled/granite-6h2-biased"),
    ("olmo2", ""): _row("tiny_families/olmo2-6h2", cuda_chunks=_CHUNKS_OF_SUMS),
    ("smollm3", ""): _row("tiny_families/smollm3-6h2", cuda_chunks=_CHUNKS_OF_ROPE),
    ("cohere", ""): _row("tiny_families/cohere-6h2", cuda_chunks=_CHUNKS_SIDE_BY_SIDE),
    ("cohere", "head norms"): _row(
        "tiny_families/cohere-4h2-normed-bf16", cuda_chunks=_CHUNKS_SIDE_BY_SIDE
    ),
    ("cohere2", "window"): _row("tiny_families/cohere2-6h2-window", cuda_chunks=_CHUNKS_OF_WINDOWS),
    ("olmo", ""): _row("tiny_families/olmo-4h4-clipped-bf16", cuda_chunks=_CHUNKS_CENTRED),
    ("nemotron", ""): _row("tiny_families/nemotron-6h2", cuda_chunks=_CHUNKS_OF_SUMS),
    ("glm4", ""): _row("tiny_families/glm4-6h2", cuda_chunks=_CHUNKS_NORMED_BEHIND),
    ("exaone4", ""): _row("tiny_families/exaone4-4h2-full-bf16", cuda_chunks=_CHUNKS_OF_SUMS),
    ("exaone4", "window"): _row("tiny_families/exaone4-6h2-window", cuda_chunks=_CHUNKS_OF_WINDOWS),
    ("granitemoe", ""): _row("tiny_experts/granitemoe-6h2-5x2", cuda_chunks=CHUNKS_OF_EXPERTS),
    ("phi3", ""): _row(""),
    ("phi3", "window"): _row("tiny_families/phi3-5h1-window"),
    ("phi3", "parts of heads"): _row("tiny_families/phi3-4h2-parts"),
    ("phi3", "long context"): _row(
        "tiny_families/phi3-4h2-long-bf16", csl=_LONG, cuda=_LONG, python_chunks=_LONG
    ),
    ("gpt_neox", ""): _row("tiny_families/gpt_neox-5h-parallel", cuda_chunks=_CHUNKS_OF_SUMS),
    ("gpt2", ""): _row("tiny_families/gpt2-5h-tied", cuda_chunks=_CHUNKS_OF_POSITIONS),
    ("stablelm", ""): _row("tiny_families/stablelm-6h2-biased", cuda_chunks=_CHUNKS_OF_SUMS),
    ("starcoder2", ""): _row("tiny_families/starcoder2-4h2-plain-f16", cuda_chunks=_CHUNKS_OF_SUMS),
    ("starcoder2", "window"): _row(
        "tiny_families/starcoder2-5h1-window", cuda_chunks=_CHUNKS_OF_SUMS
    ),
    ("internlm2", ""): _row("tiny_families/internlm2-6h2"),
    ("mixtral", ""): _row("tiny_experts/mixtral-5x2", cuda_chunks=CHUNKS_OF_EXPERTS),
    ("mixtral", "window"): _row("", cuda_chunks=CHUNKS_OF_EXPERTS),
    ("qwen2_moe", ""): _row("tiny_experts/qwen2-moe-6x2", cuda_chunks=CHUNKS_OF_EXPERTS),
    ("qwen2_moe", "experts"): _row(
        "tiny_experts/qwen2-moe-5x2-dense-bf16", cuda_chunks=CHUNKS_OF_EXPERTS
    ),
    ("qwen2_moe", "window"): _row("", cuda_chunks=CHUNKS_OF_EXPERTS),
    ("qwen3_moe", "window"): _row("", cuda_chunks=CHUNKS_OF_EXPERTS),
    ("qwen3_moe", "experts"): _row(
        "tiny_experts/qwen3-moe-6x2-dense", cuda_chunks=CHUNKS_OF_EXPERTS
    ),
    ("qwen3_moe", ""): _row("tiny_experts/qwen3-moe-7x3", cuda_chunks=CHUNKS_OF_EXPERTS),
    ("gpt_oss", "window"): _row(
        "tiny_gpt_oss/gpt-oss-5x2-yarn",
        cuda_chunks=CHUNKS_OF_EXPERTS,
    ),
    ("deepseek_v2", ""): _row(
        "",
        cuda_chunks=Refused("cuda-graph", "comes from graph.add, not graph.matmul"),
    ),
    ("deepseek_v2", "experts"): _row(
        "tiny_latent_experts/deepseek-v2-8x3",
        cuda_chunks=CHUNKS_OF_EXPERTS,
    ),
    ("deepseek_v3", "experts"): _row(
        "tiny_latent_experts/deepseek-v3-8x3",
        cuda_chunks=CHUNKS_OF_EXPERTS,
    ),
}


def as_markdown() -> str:
    """The table of ``docs/families.md``: ``=`` where logits are equal, else the code."""
    lines = [
        "| family | | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for (family, case), row in TABLE.items():
        cells = [
            "=" if found == EQUAL else f"`{found.code}`"
            for found in row.outcomes.values()
            if found == EQUAL or isinstance(found, Refused)
        ]
        lines.append(f"| {family} | {case} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
