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
    "cuda chunks": "prompts 24 tokens at once (`--chunk`), then steps",
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


_LONG = Refused("rope-length", "other frequencies from 6 tokens on")

TABLE: dict[tuple[str, str], Row] = {
    ("llama", ""): _row("tiny/llama-3h1"),
    ("mistral", ""): _row(""),
    ("mistral", "window"): _row("tiny_dense/mistral-6h2"),
    ("qwen2", ""): _row("tiny/qwen2-7h1"),
    ("qwen2", "window"): _row(""),
    ("qwen3", ""): _row(""),
    ("qwen3", "window"): _row(""),
    ("gemma", ""): _row("tiny_families/gemma-6h2"),
    ("gemma2", ""): _row("tiny_families/gemma2-3h3-capped-bf16"),
    ("gemma2", "window"): _row("tiny_families/gemma2-6h2-window"),
    ("gemma3_text", ""): _row("tiny_families/gemma3-3h1-capped-bf16"),
    ("gemma3_text", "window"): _row("tiny_families/gemma3-6h2-window"),
    ("granite", ""): _row("tiny_scaled/granite-6h2-biased"),
    ("olmo2", ""): _row("tiny_families/olmo2-6h2"),
    ("smollm3", ""): _row("tiny_families/smollm3-6h2"),
    ("cohere", ""): _row("tiny_families/cohere-6h2"),
    ("cohere", "head norms"): _row("tiny_families/cohere-4h2-normed-bf16"),
    ("cohere2", "window"): _row("tiny_families/cohere2-6h2-window"),
    ("olmo", ""): _row("tiny_families/olmo-4h4-clipped-bf16"),
    ("nemotron", ""): _row("tiny_families/nemotron-6h2"),
    ("glm4", ""): _row("tiny_families/glm4-6h2"),
    ("exaone4", ""): _row("tiny_families/exaone4-4h2-full-bf16"),
    ("exaone4", "window"): _row("tiny_families/exaone4-6h2-window"),
    ("granitemoe", ""): _row("tiny_experts/granitemoe-6h2-5x2"),
    ("phi3", ""): _row(""),
    ("phi3", "window"): _row("tiny_families/phi3-5h1-window"),
    ("phi3", "parts of heads"): _row("tiny_families/phi3-4h2-parts"),
    ("phi3", "long context"): _row(
        "tiny_families/phi3-4h2-long-bf16", csl=_LONG, cuda=_LONG, python_chunks=_LONG
    ),
    ("gpt_neox", ""): _row("tiny_families/gpt_neox-5h-parallel"),
    ("gpt2", ""): _row("tiny_families/gpt2-5h-tied"),
    ("stablelm", ""): _row("tiny_families/stablelm-6h2-biased"),
    ("starcoder2", ""): _row("tiny_families/starcoder2-4h2-plain-f16"),
    ("starcoder2", "window"): _row("tiny_families/starcoder2-5h1-window"),
    ("internlm2", ""): _row("tiny_families/internlm2-6h2"),
    ("mixtral", ""): _row("tiny_experts/mixtral-5x2"),
    ("mixtral", "window"): _row(""),
    ("qwen2_moe", ""): _row("tiny_experts/qwen2-moe-6x2"),
    ("qwen2_moe", "experts"): _row("tiny_experts/qwen2-moe-5x2-dense-bf16"),
    ("qwen2_moe", "window"): _row(""),
    ("qwen3_moe", "window"): _row(""),
    ("qwen3_moe", "experts"): _row("tiny_experts/qwen3-moe-6x2-dense"),
    ("qwen3_moe", ""): _row("tiny_experts/qwen3-moe-7x3"),
    ("gpt_oss", "window"): _row("tiny_gpt_oss/gpt-oss-5x2-yarn"),
    ("deepseek_v2", ""): _row(""),
    ("deepseek_v2", "experts"): _row("tiny_latent_experts/deepseek-v2-8x3"),
    ("deepseek_v3", "experts"): _row("tiny_latent_experts/deepseek-v3-8x3"),
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
