"""Every section by its name on the command line, in the order of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from meshc.driver.reproduction import claims, cluster_fusion, timed_steps, token_weave, wafer_llm
from meshc.driver.reproduction.compared import Section
from meshc.driver.reproduction.servers import LATENCY_TABLES, Servers
from meshc.support.diagnostics import fail

Tell = Callable[[str], None]
"""Called with the name of a section before it is made."""


def builders(servers: Servers) -> Mapping[str, Callable[[], Section]]:
    """What makes each section; those of servers are simulated by ``servers``."""
    found: dict[str, Callable[[], Section]] = {
        "waferllm-1": wafer_llm.table_1,
        "waferllm-2": wafer_llm.table_2,
        "waferllm-3": wafer_llm.table_3,
        "waferllm-4": wafer_llm.table_4,
        "waferllm-5": wafer_llm.table_5,
        "waferllm-6": wafer_llm.table_6,
        "waferllm-7": wafer_llm.table_7,
        "waferllm-8": wafer_llm.table_8,
        "waferllm-claims": claims.claims,
        "layered-1": servers.coverage,
        "layered-4": servers.lengths,
        "layered-7": servers.savings,
        "layered-8-energy": servers.energies,
        "layered-9": servers.larger,
        "layered-figure-2": servers.chunks,
        "layered-figure-3": servers.attainments,
        "layered-figure-3-limits": servers.limits,
        "layered-readme": servers.released,
        "layered-claims": servers.claims,
    }
    found |= {f"layered-{name}": partial(servers.latencies, name) for name in LATENCY_TABLES}
    found |= {
        "clusterfusion-1": cluster_fusion.table_1,
        "clusterfusion-4.1": partial(cluster_fusion.steps, "4.1"),
        "clusterfusion-C.1": partial(cluster_fusion.steps, "C.1"),
        "clusterfusion-claims": cluster_fusion.claims,
    }
    found |= {
        f"tokenweave-{name}": partial(token_weave.figure, name) for name in token_weave.FIGURES
    }
    found["tokenweave-figure-11"] = token_weave.latencies
    for names, make in (
        (token_weave.MICROBENCHMARKS, token_weave.kernels),
        (token_weave.SHARES, token_weave.shares),
        (token_weave.THROUGHPUTS, token_weave.throughputs),
    ):
        found |= {f"tokenweave-{name}": partial(make, name) for name in names}
    found["tokenweave-claims"] = token_weave.claims
    found |= {f"recorded-{name}": partial(timed_steps.steps, name) for name in timed_steps.TABLES}
    return found


def chosen(names: Sequence[str]) -> tuple[str, ...]:
    """The sections that ``names`` name, each by its own or by a word that it begins with, such as
    a paper; all of them for no names. Raises ``bad-argument``."""
    known = tuple(builders(Servers()))
    if not names:
        return known
    found: list[str] = []
    for name in names:
        own = [name] if name in known else [one for one in known if one.startswith(f"{name}-")]
        if not own:
            papers = ", ".join(dict.fromkeys(one.partition("-")[0] for one in known))
            near = [one for one in known if name.partition("-")[0] == one.partition("-")[0]]
            fail(
                "bad-argument",
                f"'{name}' is no table that is compared",
                help=f"those of a paper: {', '.join(near)}" if near else f"papers are {papers}",
            )
        found += own
    return tuple(dict.fromkeys(found))


def made(names: Sequence[str], servers: Servers, tell: Tell) -> tuple[Section, ...]:
    """The sections of these names."""
    known = builders(servers)
    found = []
    for name in names:
        tell(name)
        found.append(known[name]())
    return tuple(found)
