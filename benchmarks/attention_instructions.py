"""Instructions of a warp that attends statement by statement, or to latents for several tokens.

    python benchmarks/attention_instructions.py

Steps of two layers whose heads are none of those that tensor cores attend to are compiled, and the
instructions of the loop over tiles of cached tokens are counted in machine code: of a product of
scores, of one of sums, and of all that stands beside the loops over these. Then those of a tile of
latents, for one token of 16 heads and for two.
``cost/tasks/attended.py`` and ``cost/tasks/tile_times.py`` have what the event model makes of that.
Needs NVRTC or nvcc, and nvdisasm.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from code_instructions import loops_of
from measuring import table

import meshc
from meshc.backends.cuda.toolchain.toolkit import compile_cubin, disassemble

CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 2,
    "vocab_size": 32000, "rms_norm_eps": 1e-5, "hidden_act": "silu", "num_attention_heads": 32,
    "num_key_value_heads": 8,
}  # fmt: skip
CASES = {
    "heads of 72 lanes": (72, "model"),
    "heads of 320 lanes, in chunks that are exchanged": (320, "model"),
    "heads of 72 lanes, floats of eight bits": (72, "fp8_e4m3"),
}
_LATENTS = """#include "mc.cuh"
typedef mc::{dtype} T;
extern "C" __global__ void __launch_bounds__(288, 1)
    latents(const float* from, float* to, int tiles, int pos) {{
    unsigned char* arena = mc::arena();
    mc::Ring<6> ring(arena, arena + 1024, 18432);
    const int me = mc::thread();
    typedef mc::TileAttention<T, 16 * {tokens}, 576, 512, 16, 8, 576, true> Tiles;
    T* const asked = (T*)(arena + 116000);
    const T* const fresh = (const T*)(arena + 190000);
    Tiles::put_lanes<0, 576>(asked, from, 576, me);
    Tiles attended(asked, arena + 196000, me, 1);
    #pragma unroll 1
    for (int n = 0; n < tiles; n++) {{
        const T* const rows = (const T*)ring.ready(n);
        const auto seen = [=](int query, int position) {{ return position < pos + query / 16; }};
        const mc::NewRows<T, 576> placed{{fresh, fresh, pos}};
        attended.add(rows, rows, n * 128, min(16, pos - n * 128), 0.1f, seen, placed);
        ring.release(n);
    }}
    attended.finish(to, to + 65536, to + 66000);
}}
MC_EXPORT(latents)
"""
STEPS_OF_PART = 5
"""Turns of the loop over lanes of keys that a warp has for a tile at the most."""
LEAST_MEETINGS, LEAST_PRODUCTS = 10, 4
"""Of a loop over tiles, and of those over products in it; others have fewer."""


@dataclass(frozen=True)
class Count:
    """Instructions for a product of a score, of a sum, and for a tile besides."""

    score: float
    sum: float
    rest: int


def counted(lanes: int, kept: str = "model", dtype: str = "f16") -> Count:
    """Those of heads of so many ``lanes`` in caches that are ``kept`` as floats of eight bits, or
    not. Raises BuildError, and MeshcError ``cuda-toolkit``."""
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG | {"head_dim": lanes}))
        made = meshc.compile(
            folder, target="cuda", phase="decode", dtype=dtype, device="h200", seq=1024,
            kv_dtype=kept,
        )  # fmt: skip
    found: dict[int, dict[int, str]] = {}
    for one in loops_of(disassemble(compile_cubin(made.files["step.cu"]))):
        found[min(one)] = max(found.get(min(one), {}), one, key=len)
    loops = [*found.values()]
    products = [
        one for one in loops if _count(one, "FFMA") >= LEAST_PRODUCTS and _is_leaf(one, loops)
    ]
    meeting = [one for one in loops if _count(one, "BAR.SYNC") >= LEAST_MEETINGS]
    tile = min((one for one in meeting if len(_inside(one, products)) == 2), key=len)
    leaves = [one for one in _inside(tile, loops) if _is_leaf(one, loops)]
    products = sorted(_inside(tile, products), key=min)
    score, added = (len(one) / _count(one, "FFMA") for one in products)
    return Count(score, added, len(tile) - sum(map(len, leaves)))


def counted_latents(tokens: int, dtype: str = "f16") -> int:
    """Those of a warp for a tile of latents, for so many tokens. Raises as :func:`counted`."""
    code = disassemble(compile_cubin(_LATENTS.format(dtype=dtype, tokens=tokens)))
    loops = [*loops_of(code)]
    tile = max((one for one in loops if _count(one, "BAR.SYNC")), key=len)
    inside = [one for one in _inside(tile, loops) if _count(one, "HMMA")]
    scores = max(inside, key=len)
    return len(tile) + (STEPS_OF_PART - 1) * len(scores)


def _inside(loop: dict[int, str], loops: list[dict[int, str]]) -> list[dict[int, str]]:
    return [one for one in loops if one.keys() < loop.keys()]


def _is_leaf(loop: dict[int, str], loops: list[dict[int, str]]) -> bool:
    return not _inside(loop, loops)


def _count(loop: dict[int, str], name: str) -> int:
    return sum(name in text for text in loop.values())


def main() -> None:
    """Print the table."""
    rows = []
    for words, given in CASES.items():
        for dtype in ("f16", "bf16"):
            one = counted(*given, dtype)
            rows.append([words, dtype, f"{one.score:.1f}", f"{one.sum:.1f}", str(one.rest)])
    print(table(["caches", "type", "a score", "a sum", "besides"], rows))
    for dtype in ("f16", "bf16"):
        first, both = (counted_latents(tokens, dtype) for tokens in (1, 2))
        print(f"a tile of latents, {dtype}: {first}, for two tokens {both}")


if __name__ == "__main__":
    main()
