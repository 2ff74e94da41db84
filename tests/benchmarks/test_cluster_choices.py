"""The table of clusters of a step's attention: what it predicts adds up, and follows the number of
heads."""

from pathlib import Path

import cluster_choice
import pytest

from meshc.cost.cluster_sizes import Attention
from meshc.devices import device

H200 = device("h200")
PAGE = Path(__file__).parents[2] / "docs" / "step-times.md"


def test_a_layer_in_clusters_that_divide_its_heads_and_in_others():
    """7 clusters of 16 have one of 7 heads each; of 8 heads one has two, for which the others
    wait."""
    found = {}
    for heads in (7, 8):
        graph = cluster_choice.graph_of(H200, Attention(1024, heads, heads, 128), 4096)
        layer = found[heads] = cluster_choice.layer(graph, 4096, 16)
        parts = layer.memory + layer.computing + layer.meeting + layer.idle
        assert layer.seconds == pytest.approx(parts)
    assert found[8].idle > 1.5 * found[7].idle


def test_a_row_has_the_fastest_clusters(capsys):
    text = cluster_choice.table(H200, [Attention(512, 8, 8, 64)], [200])
    header, _, row = (line.strip("| ").split(" | ") for line in text.splitlines())
    cells = dict(zip(header, row, strict=True))
    times = {n: float(cells[f"us of {n}"]) for n in cluster_choice.SIZES}
    assert times[int(cells["blocks"])] == min(times.values())
    assert "8 heads of 64, 200" in capsys.readouterr().err


def test_the_page_shows_the_table():
    row = cluster_choice.table(H200, [Attention(4096, 32, 32, 64)], [1024]).splitlines()[-1]
    assert row in PAGE.read_text(encoding="utf-8")
