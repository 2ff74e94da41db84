"""Decoders that are drawn, and how their steps are compiled and run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from float64_decoders import ACTIVATIONS, Decoder

from meshc.ir.codes import CODE_FORMATS

FORMATS = sorted(CODE_FORMATS)


@dataclass(frozen=True)
class Drawn:
    """A decoder and how its step is compiled, for a GPU of so many cores, and run."""

    decoder: Decoder
    dtype: str
    batch: int
    capacity: int
    page: int
    rows: int
    tokens: int
    parts: int
    merge: bool
    cores: int
    positions: tuple[tuple[int, ...], ...] = field(default=())
    meet: str = "counter"
    columns: bool = False

    def with_columns(self, batch: int) -> Drawn:
        """The same for a ``batch`` of requests with left sides of products in memory, of which
        tasks have parts if those of others do."""
        every = tuple(tuple(at[b % len(at)] for b in range(batch)) for at in self.positions)
        given = {"batch": batch, "positions": every, "merge": True}
        return replace(self, columns=True, meet="counter", **given)


def drawn_decoder(seed: int) -> Drawn:
    """The ``seed``-th decoder, with two sets of positions of its requests."""
    rng = random.Random(seed)

    def rarely(value, none=0, part=0.25):
        return value if rng.random() < part else none

    lanes = rng.choice(
        [
            16,
            16,
            32,
            48,
            64,
            64,
            80,
            96,
            112,
            128,
            160,
            192,
            256,
            rng.choice([2, 6, 8, 10, 20, 24, 40, 72]),
        ]
    )
    share = rng.choice([1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 15, 16])
    groups = rng.choice([1, 1, 2, 3]) if share * lanes < 600 else 1
    hidden = rng.choice([16, 24, 30, 32, 48, 56, 64, 72, 80, 96, 100, 128, 160])
    layers = rng.choice([1, 2, 2, 3])
    window = rarely(rng.choice([1, 2, 5, 16, 17, 31, 40, 64, 100]), part=0.35)
    learned = rng.random() < 0.1
    decoder = Decoder(
        hidden=hidden,
        heads=share * groups,
        groups=groups,
        lanes=lanes,
        features=rng.choice([16, 24, 40, 48, 64, 96, 100, 144, 176]),
        words=rng.choice([17, 33, 50, 64, 100, 130]),
        layers=layers,
        norm=rng.choice(["rms", "rms", "rms", "layer", "layer with bias"]),
        where=rng.choice(["before", "before", "before", "behind", "both"]),
        head_norm=rarely(rng.choice(["each", "all"]), "", 0.3),
        biases="".join(rarely(name, "", 0.3) for name in "qof"),
        rope="" if learned else rng.choice(["half", "half", "half", "interleaved", ""]),
        rotated=rarely(rng.choice([n for n in range(2, lanes, 2) if lanes % n == 0] or [0])),
        local=rarely(rng.choice([2, 3])),
        learned=learned,
        window=window,
        every=rng.choice([1, 1, 2, 3]),
        but=rarely(rng.choice([2, 3])),
        sink=rng.random() < 0.2,
        cap=rarely(rng.choice([2.0, 5.0, 30.0])),
        scale=rarely(rng.choice([0.05, 0.2, 0.5])),
        embedded=rarely(rng.choice([2.0, 0.5, 6.3])),
        residual=rarely(rng.choice([0.22, 1.4])),
        divided=rarely(rng.choice([4.0, 0.7])),
        logit_cap=rarely(rng.choice([3.0, 30.0])),
        activation=rng.choice(["silu", "silu", *ACTIVATIONS]),
        gated=rng.random() < 0.7,
        clamped=rarely(rng.choice([0.5, 1.5])),
        parallel=rng.random() < 0.15,
        tied=rng.random() < 0.4,
    )
    if decoder.parallel and decoder.where != "before":
        decoder = replace(decoder, parallel=False)
    if decoder.norm != "rms" and decoder.head_norm == "each":
        decoder = replace(decoder, head_norm="centred")
    parts = rng.choice([1, 1, 1, 2, 3])
    merge = rng.random() < 0.3
    divided = [decoder.features, *([decoder.heads * lanes] if merge else [])]
    if any(width % parts == 0 and width // parts % 16 for width in divided):
        parts = 1
    batch = rng.choice([1, 1, 1, 2, 3, 4, 5, 7, 8, 11, 16])
    tokens = rng.choice([n for n in (0, 0, 16, 32, 32, 48, 64) if n * lanes <= 8192])
    capacity = rng.choice([1, 7, 16, 40, 64, 100, 150, 257, 300])
    positions = []
    for _ in range(2):
        ends = [
            0,
            1,
            capacity - 1,
            capacity - 2,
            tokens or 33,
            tokens - 1,
            tokens + 1,
            2 * tokens,
            rng.randrange(capacity),
        ]
        ends += [rng.randrange(capacity) for _ in range(4)]
        positions.append(tuple(min(max(rng.choice(ends), 0), capacity - 1) for _ in range(batch)))
    positions[0] = (capacity - 1, *positions[0][1:])
    return Drawn(
        decoder,
        rng.choice(["f16", "bf16"]),
        batch,
        capacity,
        rng.choice([1, 16, 16, 64]),
        rng.choice([16, 16, 8, 4, 5]),
        tokens,
        parts,
        merge,
        rng.choice([132, 132, 2, 3, 7]),
        tuple(positions),
    )


def quantised_decoder(seed: int) -> tuple[Drawn, str]:
    """The ``seed``-th decoder with widths of whole groups, and the format of its weights."""
    rng, form = random.Random(seed), FORMATS[seed % len(FORMATS)]
    group = CODE_FORMATS[form].span
    drawn = drawn_decoder(seed)
    hidden = group * (rng.choice([1, 2, 3] if group < 128 else [1, 2]) if group < 256 else 1)
    features = group * (rng.choice([1, 2, 3, 5] if group < 128 else [1, 2]) if group < 256 else 1)
    parts = rng.choice([1, 1, 2]) if hidden // group % 2 == features // group % 2 == 0 else 1
    return replace(
        drawn,
        dtype=["f16", "bf16"][seed // len(FORMATS) % 2],
        parts=parts,
        decoder=replace(drawn.decoder, hidden=hidden, features=features),
        meet=rng.choice(["counter", "tags"]),
    ), form
