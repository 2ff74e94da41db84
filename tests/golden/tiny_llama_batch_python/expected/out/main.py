"""tiny_llama on 1 columns x 2 rows of cores: maps prompt ids to token ids.

    python main.py --prompt-ids 5,17,42 --max-tokens 8 [--logits FILE.npy] [--stop-at-eos]

Up to 2 prompts are read at once: give --prompt-ids for each. Their answers are printed in
lines, in the same order, and the logits are [requests, tokens, vocab], NaN behind a text's end.

The host does the embedding, the loop over tokens and greedy sampling; all else runs on the cores.
Weights are read from the folder `weights` next to this file, one `<name>.npy` each.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from decode import decode
from mesh_runtime import Fabric, HostError, LanguageModel, Mesh, PortError, Weights
from prefill import prefill

MESH = Mesh({"y": 2, "x": 1}, factors={"x": {"xh": 1, "xd": 1}})
EMBEDDING = "embedding"
VOCAB = 256
CAPACITY = 8  # tokens of prompt and answer together
BATCH = 2  # requests of a step
EOS = ()


def load(weights=Path(__file__).parent / "weights", order=None):
    """The model, packed onto the mesh. `weights` is a folder, or arrays by name.

    `order` numbers the cores (a permutation); it changes nothing that can be seen.
    """
    tensors = weights if isinstance(weights, Mapping) else Weights(Path(weights))
    if EMBEDDING not in tensors:
        raise HostError(f"there is no tensor '{EMBEDDING}' among the weights")
    fabric = Fabric(MESH, order)
    return LanguageModel(
        prefill=prefill(fabric).load(tensors),
        decode=decode(fabric).load(tensors),
        embedding=tensors[EMBEDDING],
        vocab=VOCAB,
        capacity=CAPACITY,
        batch=BATCH,
    )


def token_ids(text):
    """Ids from a comma-separated list."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of ids such as 5,17,42") from None


def arguments():
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--prompt-ids", type=token_ids, action="append", required=True, metavar="5,17,42"
    )
    parser.add_argument("--max-tokens", type=int, default=16, metavar="N")
    parser.add_argument("--logits", metavar="FILE.npy", help="[requests, tokens, vocab]")
    parser.add_argument("--stop-at-eos", action="store_true")
    return parser.parse_args()


def main():
    """Print the generated ids, comma-separated; returns the exit status."""
    args = arguments()
    steps = [[] for _ in args.prompt_ids]
    stop = EOS if args.stop_at_eos else ()
    try:
        model = load()
        found = model.generate_all(
            args.prompt_ids,
            args.max_tokens,
            lambda request, token, logits: steps[request].append(logits),
            stop,
        )
    except (HostError, PortError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if args.logits:
        logits = np.full((len(steps), max(map(len, steps)), VOCAB), np.nan, np.float32)
        for rows, own in zip(logits, steps, strict=True):
            rows[: len(own)] = own
        np.save(args.logits, logits)
    for tokens in found:
        print(",".join(map(str, tokens)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
