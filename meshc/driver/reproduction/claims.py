"""WaferLLM's claims, Figures 9 and 10 among them, as statements about predictions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from math import ceil

from meshc.cost.operations import Tile
from meshc.cost.terms import Cost
from meshc.cost.transformers import (
    WAFERLLM,
    balanced,
    mesh_gemm,
    mesh_gemv,
    summa,
    tile_product,
)
from meshc.driver.reproduction.compared import Compared, Section
from meshc.driver.reproduction.wafer_llm import (
    MODELS,
    TOKENS,
    bare_constants,
    constants_of,
    prompt_cycles,
    section,
    table_3,
    table_4,
    wafer,
)
from meshc.published import Row, table

SIDES = (180, 360, 540, 720)
"""Cores along an edge in Figures 9 and 10."""
ALGORITHMS = ("MeshGEMM", "Cannon", "SUMMA")

Verdict = tuple[str, bool]
"""What is predicted, in words, and whether the claim holds."""


def gemm(algorithm: str, size: int, side: int) -> Cost:
    """A square product by one of :data:`ALGORITHMS`."""
    edge, own = ceil(size / side), constants_of(WAFERLLM, MODELS, "3")
    tile = Tile(edge, edge, edge)
    if algorithm == "SUMMA":
        return summa(tile, side, own, wafer())
    hops = 2 if algorithm == "MeshGEMM" else side - 1
    return mesh_gemm(tile, side, own, wafer(), hops)


def efficiency(algorithm: str, size: int, side: int) -> float:
    """The share of a product that tile products take."""
    edge, own = ceil(size / side), constants_of(WAFERLLM, MODELS, "3")
    work = tile_product(Tile(edge, edge, edge), own, wafer()).total * side
    return work / gemm(algorithm, size, side).total


def gemv(size: int, side: int, chain: bool = False) -> Cost:
    """A vector times a matrix by MeshGEMV, or with sums along a chain as in the vendor's."""
    groups = (side,) if chain else balanced(side)
    return mesh_gemv(size, side, bare_constants(), wafer(), groups)


def _efficient() -> Verdict:
    found = {f"{size}": efficiency("MeshGEMM", size, 720) for size in (2048, 4096, 8192)}
    return _shares(found), max(found.values()) > 0.7


def _inefficient() -> Verdict:
    found = {
        f"{name} {size}": efficiency(name, size, 720)
        for name in ("Cannon", "SUMMA")
        for size in (2048, 4096, 8192)
    }
    return _shares(found), all(share < 0.5 for share in found.values())


def _shares(found: Mapping[str, float]) -> str:
    return ", ".join(f"{name}: {share:.2f}" for name, share in found.items())


def _grows() -> Verdict:
    found = {name: _ratio(name) for name in ("SUMMA", "Cannon")}
    return _shares(found), all(ratio > 1.1 for ratio in found.values())


def _flat() -> Verdict:
    ratio = _ratio("MeshGEMM")
    return f"times {ratio:.2f}", 0.8 < ratio < 1.2


def _ratio(algorithm: str) -> float:
    """Time of a product of 2048 on 720x720 cores over that on 360x360."""
    return gemm(algorithm, 2048, 720).total / gemm(algorithm, 2048, 360).total


def _communication_falls() -> Verdict:
    own = wafer()
    found = []
    for side in SIDES:
        edge = ceil(8192 / side)
        words = Tile(edge, edge, edge).moved(own)
        found.append(side * (words + 2 + own.link.route_cycles))
    return _falling(found), all(a > b for a, b in itertools.pairwise(found))


def _falling(found: list[float]) -> str:
    return ", ".join(f"{side}x{side}: {n:,.0f}" for side, n in zip(SIDES, found, strict=True))


def _times_gemm() -> Verdict:
    found = [
        gemm(name, size, 720).total / gemm("MeshGEMM", size, 720).total
        for name in ("SUMMA", "Cannon")
        for size in (2048, 4096, 8192)
    ]
    return f"{min(found):.1f} to {max(found):.1f} on 720x720", max(found) >= 2


def _saved() -> Verdict:
    saved = 1 - gemm("MeshGEMM", 8192, 720).total / min(
        gemm(name, 8192, 720).total for name in ("SUMMA", "Cannon")
    )
    return f"{saved:.2f} of a product of 8192 on 720x720", abs(saved - 0.17) < 0.05


def _times_gemv() -> Verdict:
    found = [
        gemv(size, side, chain=True).total / gemv(size, side).total
        for size in (2048, 4096, 8192, 16384)
        for side in SIDES
    ]
    return f"{min(found):.1f} to {max(found):.1f}", 4 <= max(found) <= 8


def _times_gemv_most() -> Verdict:
    most = max(
        gemv(size, side, chain=True).total / gemv(size, side).total
        for size in (2048, 8192, 16384)
        for side in SIDES
    )
    return f"{most:.1f}", abs(most / 4.6 - 1) < 0.2


def _communicates() -> Verdict:
    whole = gemv(2048, 720, chain=True)
    share = (whole.transfer + whole.stages) / whole.total
    return f"{share:.2f} with chains, a product of 2048 on 720x720", share > 0.9


def _inflects() -> Verdict:
    sides = range(60, 751, 30)
    words, holds = [], True
    for size in (8192, 16384):
        best = [
            min(sides, key=lambda s, c=chain, n=size: gemv(n, s, c).total)  # type: ignore[misc]
            for chain in (True, False)
        ]
        words.append(f"{size}: fastest on {best[0]} squared with chains, {best[1]} with trees")
        holds &= best[0] < best[1] and best[0] < max(sides)
    return "; ".join(words), holds


def _times_gpu() -> Verdict:
    own = table("waferllm", "6")
    found = [
        row.number("ms") / next(r for r in own.where(size=size) if not r.whole("gpus")).number("ms")
        for size in (16384, 32768)
        for row in own.where(size=size, gpus=1)
    ]
    return f"{min(found):.0f} to {max(found):.0f}, by Table 6", _near(found, (280, 606))


def _times_cluster() -> Verdict:
    own = table("waferllm", "6")
    found = []
    for size in (16384, 32768):
        rows = own.where(size=size)
        ours = next(r for r in rows if not r.whole("gpus")).number("ms")
        found.append(min(r.number("ms") for r in rows if r.whole("gpus")) / ours)
    return f"{min(found):.0f} to {max(found):.0f}, by Table 6", _near(found, (166, 210))


def _near(found: list[float], wanted: tuple[float, float]) -> bool:
    """Whether the least and the most are those published, within one in their last digit."""
    return abs(min(found) - wanted[0]) < 1.5 and abs(max(found) - wanted[1]) < 1.5


def _shifts() -> Verdict:
    own = table("waferllm", "5")
    found = [
        own.where(model=row.text("model"), policy="shift")[0].number("tokens")
        / row.number("tokens")
        for row in own.where(policy="concat")
    ]
    return f"{min(found):.0f} to {max(found):.0f}, by Table 5", _near(found, (360, 385))


def _scales() -> Verdict:
    own = constants_of(WAFERLLM, MODELS, "3")
    found = {}
    for model in ("qwen2-72b", "llama-3-8b"):
        few, many = (prompt_cycles(WAFERLLM, model, side, TOKENS, own) for side in (480, 720))
        found[model] = few / many
    holds = all(
        round(ratio, 1) == wanted for ratio, wanted in zip(found.values(), (1.6, 1.4), strict=True)
    )
    return _shares(found), holds


def _over(section: Callable[[], Section], other: str) -> tuple[float, float]:
    """The mean and the most by how much WaferLLM is predicted to be faster than another system."""
    rates = {row.what: float(row.predicted or 0) for row in section().rows if row.predicted}
    found = [
        rate / rates[what.replace("WaferLLM", other)]
        for what, rate in rates.items()
        if "WaferLLM" in what
    ]
    return sum(found) / len(found), max(found)


def _t10_prompts() -> Verdict:
    mean, most = _over(table_3, "T10")
    return f"{mean:.0f} in the mean, {most:.0f} at most", abs(mean / 160 - 1) < 0.1


def _t10_steps() -> Verdict:
    mean, most = _over(table_4, "T10")
    return f"{mean:.1f} in the mean, {most:.1f} at most", abs(mean / 5.7 - 1) < 0.1


def _ladder_steps() -> Verdict:
    mean, most = _over(table_4, "Ladder")
    return f"{mean:.0f} in the mean, {most:.0f} at most", abs(mean / 217 - 1) < 0.1


CLAIMS: Mapping[str, Callable[[], Verdict]] = {
    "speedup_vs_T10_prefill": _t10_prompts,
    "speedup_vs_T10_decode": _t10_steps,
    "speedup_vs_Ladder_decode": _ladder_steps,
    "meshgemm_vs_summa_cannon": _times_gemm,
    "meshgemv_vs_cerebras_gemv": _times_gemv,
    "meshgemv_vs_cerebras_gemv_fig10": _times_gemv_most,
    "meshgemm_efficiency_720": _efficient,
    "summa_cannon_efficiency_720": _inefficient,
    "meshgemm_total_cycle_reduction_large": _saved,
    "gemm2k_summa_cannon_latency_360_to_720": _grows,
    "gemm2k_meshgemm_latency_720": _flat,
    "gemm8k_comm_cycles_vs_cores": _communication_falls,
    "gemv_comm_fraction_max": _communicates,
    "gemv_8k_16k_baseline_trend": _inflects,
    "kv_shift_vs_concat": _shifts,
    "gemv_vs_gpu": _times_gpu,
    "gemv_vs_best_gpu_cluster": _times_cluster,
    "scaleup_480_to_720": _scales,
}
"""What the claims say that can be asked of predictions, or of the paper's own tables."""
OF_FIGURES = (
    "meshgemm_vs_summa_cannon",
    "meshgemm_efficiency_720",
    "summa_cannon_efficiency_720",
    "meshgemm_total_cycle_reduction_large",
    "gemm2k_summa_cannon_latency_360_to_720",
    "gemm2k_meshgemm_latency_720",
    "gemm8k_comm_cycles_vs_cores",
    "meshgemv_vs_cerebras_gemv",
    "meshgemv_vs_cerebras_gemv_fig10",
    "gemv_comm_fraction_max",
    "gemv_8k_16k_baseline_trend",
)
"""Those that Figures 9 and 10 show."""
_WHY = {
    "speedup_vs_T10_decode": "the paper's own Table 4 gives 6.6 in the mean and 8.5 at most",
    "meshgemm_vs_summa_cannon": "nothing is gained at 8192, where products hide all messages",
    "meshgemm_efficiency_720": "of the largest product; a step of small ones is mostly its start",
    "summa_cannon_efficiency_720": "at 8192 a tile product takes longer than a message over 719 "
    "cores, so that both algorithms hide it; the paper does not say of which product it speaks",
    "meshgemm_total_cycle_reduction_large": "at 8192 products hide the messages of all three",
    "meshgemv_vs_cerebras_gemv_fig10": "the largest meshes have the longest chains; how the "
    "vendor's sums go is not said, a pipeline with a store at each core is taken",
}
"""Why some do not hold, or in which sense they do."""
_NOT_ASKED = "a statement about GPUs, code or other systems that nothing here predicts"


def claims() -> Section:
    """All claims, those of the figures first."""
    own = table("waferllm", "claims")
    rows = sorted(own.rows, key=lambda row: row.text("what") not in OF_FIGURES)
    return section("claims", (_compared(row) for row in rows), "constants of Tables 3, 4 and 6")


def _compared(row: Row) -> Compared:
    name = row.text("what")
    words, where = name.replace("_", " "), row.text("where")
    what = f"{words} ({where})"
    published = row.values["value"]
    if name not in CLAIMS:
        return Compared(what, "value", "", published, None, "not modelled", _NOT_ASKED)
    found, holds = CLAIMS[name]()
    return Compared(what, "value", "", published, found, "claim", _WHY.get(name, ""), holds=holds)
