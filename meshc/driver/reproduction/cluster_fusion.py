"""ClusterFusion's tables: collectives of a cluster, and steps with faster attention blocks.

The paper publishes its kernels beside engines of others as ratios, which say nothing of either; and
its microbenchmark of collectives without the size of its clusters. So of the first the ratio of a
whole step is predicted from that of its attention block, of the second what lies between its ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from meshc.cost.cluster_sizes import Attention, rows_cost, step_cost
from meshc.cost.least_squares import Constants, fitted
from meshc.cost.predictions import inputs_of
from meshc.cost.served_attention import GroupedAttention
from meshc.devices import device
from meshc.driver.reproduction.compared import (
    Compared,
    Constant,
    Role,
    Section,
    claimed,
    compared,
    not_modelled,
)
from meshc.driver.served_shapes import served_model
from meshc.published import Row, Table, table

CONTEXTS = (1024, 2048, 4096, 8192, 16384)
"""Cached tokens over which the paper takes means."""
RESIDENT = 2
"""Blocks of the published kernel on a multiprocessor: what its 101,312 bytes of shared memory and
128 threads allow."""
ENDS = (32, 256)
"""KiB of the collectives that a fixed time and a rate are fitted to."""
_ENGINES = "how long other engines take for attention, launches included, is not said"
_LATENT = (
    "with DeepSeek-V2-Lite a step gains more than its core module beside TensorRT-LLM (1.51 and "
    "1.35), so the rest of a step is not the same in both, as it is taken to be of Llama-2"
)


def table_1() -> Section:
    """Collectives: a fixed time and a rate for each, through global memory and between blocks."""
    own = table("clusterfusion", "1")
    constants: list[Constant] = []
    lines: dict[tuple[str, str], Constants] = {}
    for op in ("reduce", "gather"):
        for metric in ("off_chip_us", "on_chip_us"):
            rows = [r for r in own.where(op=op) if r.whole("kib") in ENDS]

            def times(found: Constants, rows: list[Row] = rows) -> list[float]:
                return [_us(found, row.whole("kib")) for row in rows]

            start = {"fixed": 5.0, "each_kib": 0.01}
            line = fitted(start, times, [row.number(metric) for row in rows])
            lines[op, metric] = line
            where = metric.removesuffix("_us").replace("_", " ")
            constants += [
                Constant(f"{op} {where}, fixed", line["fixed"], "us", "its ends"),
                Constant(f"{op} {where}, a KiB", line["each_kib"], "us", "its ends"),
            ]

    def compare() -> Iterator[Compared]:
        for row in own.rows:
            op, kib = row.text("op"), row.whole("kib")
            role: Role = "calibrated" if kib in ENDS else "interpolated"
            found = {m: _us(lines[op, m], kib) for m in ("off_chip_us", "on_chip_us")}
            for metric, us in found.items():
                yield compared(own, row, metric, us, role)
            times = row.number("off_chip_us") / row.number("on_chip_us")
            yield compared(own, row, "speedup", times, "arithmetic")

    by = "a fixed time and a rate by op and way, from the first and the last size"
    notes = (
        "A block has 227 KiB, so that 256 KiB are of a whole cluster; of how many blocks is not "
        "said, nor in how many clusters at once, so that rates between blocks do not predict it.",
    )
    return Section("clusterfusion-1", own, by, tuple(compare()), (), tuple(constants), notes)


def _us(line: Constants, kib: int) -> float:
    return line["fixed"] + line["each_kib"] * kib


def rest_over_core(model: str, batch: int, cluster: int) -> float:
    """What a step takes beside its attention blocks, over these, in the mean of contexts."""
    where, shape = device("h100"), served_model(model)
    own = shape.attention
    assert isinstance(own, GroupedAttention)
    heads = Attention(shape.hidden, own.heads, own.key_heads, own.head_dim, batch)
    width = shape.layers[0].dense_width
    inner = rows_cost(where, [(shape.hidden, 2 * width), (width, shape.hidden)]).total
    head = rows_cost(where, [(shape.hidden, shape.vocabulary)]).total
    rest = len(shape.layers) * inner + head
    cores = [
        len(shape.layers) * step_cost(where, heads, context, cluster, resident=RESIDENT).total
        for context in CONTEXTS
    ]
    return rest / mean(cores)


def steps(name: str) -> Section:
    """Section 4.1 or appendix C.1: ratios of steps from those of core modules."""
    own: Table = table("clusterfusion", name)

    def rows() -> Iterator[Compared]:
        for row in own.rows:
            yield from not_modelled(own, _ENGINES, [row], ["core"])
            model = row.text("model")
            if model != "llama-2-7b":
                yield from not_modelled(own, _LATENT, [row], ["step"])
                continue
            rest = rest_over_core(model, row.whole("batch"), row.whole("cluster"))
            ratio = (row.number("core") + rest) / (1 + rest)
            yield compared(own, row, "step", ratio, "held out")

    seen = device("h100").watched()
    step_cost(seen, Attention(4096, 32, 32, 128), 4096, 4, resident=RESIDENT)
    by = (
        "the published ratio of the core module, where attention blocks and the rest of a step "
        "take what `meshc/cost/cluster_sizes.py` says and the rest is the same in both engines"
    )
    inputs = inputs_of(seen, seen.asked)
    return Section(f"clusterfusion-{name}", own, by, tuple(rows()), inputs)


def claims() -> Section:
    """What the text says."""
    own = table("clusterfusion", "claims")
    where = device("h100")

    def best(heads: int) -> int:
        shape = Attention(128 * heads, heads, heads, 128)
        times = {
            size: step_cost(where, shape, 4096, size, resident=RESIDENT).total
            for size in (1, 2, 4, 8, 16)
        }
        return min(times, key=times.__getitem__)

    ratios = [row.number("step") for row in table("clusterfusion", "4.1").rows]
    found: dict[str, tuple[str, bool]] = {
        f"best_cluster_heads{heads}": (f"{best(heads)} blocks", best(heads) == wanted)
        for heads, wanted in ((32, 4), (64, 4), (128, 2))
    }
    found["avg_speedup_abstract"] = (
        f"{mean(ratios):.2f}, by section 4.1",
        abs(mean(ratios) - 1.61) < 0.005,
    )
    taken = "a number of the device `h100`, copied from here"
    copied = ("dsmem_latency_cluster2", "global_mem_latency", "dsmem_bw_cluster16", "global_bw")

    def why(name: str) -> str:
        return taken if name in copied else "a fact, or of other engines"

    by = "predicted times of attention blocks by cluster size (Figure 11)"
    return Section("clusterfusion-claims", own, by, claimed(own, found, why))
