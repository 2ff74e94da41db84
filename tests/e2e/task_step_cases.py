"""Small decoders whose steps of tasks have all that emitted kernels have, between them."""

from dataclasses import replace

from drawn_decoders import Drawn
from float64_decoders import Decoder
from latent_decoders import LatentDecoder

# Attention by tensor cores, several tiles in each of several splits, a last page partly filled.
LLAMA = Drawn(
    Decoder(hidden=64, heads=4, groups=2, lanes=32, features=96, words=50),
    "f16", 1, 150, 16, 16, 16, 1, False, 7, ((149,), (17,)),
)  # fmt: skip
# Attention statement by statement; windows in every other layer, sinks, a cap, pages of one token.
WINDOWS = Drawn(
    Decoder(
        hidden=48, heads=6, groups=2, lanes=20, features=40, words=37, norm="layer with bias",
        where="both", head_norm="all", biases="qof", window=20, every=2, sink=True, cap=5.0,
        activation="gelu",
    ),
    "bf16", 3, 70, 1, 16, 16, 1, False, 132, ((69, 0, 33), (16, 1, 40)),
)  # fmt: skip
# Products in parts, merged attention, windows by tensor cores, norms of heads, two parts of heads.
PARTS = Drawn(
    Decoder(
        hidden=64, heads=10, groups=1, lanes=16, features=96, words=40, head_norm="each",
        window=40, but=2, local=2, cap=8.0, sink=True, tied=True, residual=0.5, logit_cap=9.0,
        layers=3,
    ),
    "f16", 5, 200, 64, 16, 32, 2, True, 12, ((199, 40, 63, 0, 150), (96, 39, 41, 64, 1)),
)  # fmt: skip
# More splits than are merged at once, a tile each.
SPLITS = replace(LLAMA, cores=132)
# Words with tags that hold one version after the other, in step after step.
TAGS = replace(LLAMA, cores=3, positions=((149,), (17,), (64,), (1,), (0,), (99,)), meet="tags")
# Records by tags, and merged by tasks of their own.
MERGED_TAGS = replace(SPLITS, merge=True, meet="tags")
TAGGED_PARTS = replace(PARTS, meet="tags", cores=3)
# Latents: heads in two parts, lanes of keys that end within 32, more splits than a thread merges.
LATENTS = Drawn(
    LatentDecoder(
        hidden=64, heads=20, latent=64, plain=16, turned=16, lanes=16, features=48, words=33,
        layers=2, low=0,
    ),
    "f16", 1, 600, 16, 16, 16, 1, True, 76, ((599,), (44,)),
)  # fmt: skip
# More tasks that attend than blocks.
LATENT_REQUESTS = replace(
    LATENTS, batch=2, capacity=90, merge=False, cores=3, positions=((45, 3), (12, 89)), meet="tags"
)
# Pages of one token, of which a warp looks up those of two tiles at once, three times and more.
PAGES = replace(LLAMA, page=1, capacity=250, positions=((249,), (17,)))
# Left sides in memory that a block copies in one, two and three pieces.
PIECEWISE = replace(
    LLAMA, decoder=replace(LLAMA.decoder, hidden=1100, features=624, layers=2)
).with_columns(16)
CASES = {
    "llama": LLAMA, "splits": SPLITS, "windows": WINDOWS, "parts": PARTS, "tags": TAGS,
    "merged tags": MERGED_TAGS, "tagged parts": TAGGED_PARTS, "latents": LATENTS,
    "latent requests": LATENT_REQUESTS, "pages": PAGES,
}  # fmt: skip
