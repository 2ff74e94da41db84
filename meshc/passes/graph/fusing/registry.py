"""The patterns of all kernels.

Of several that are marked by one op the first is looked for.
"""

from __future__ import annotations

from typing import Any

from meshc.passes.graph.fusing.attention_block import AttentionBlock
from meshc.passes.graph.fusing.embed import Embed
from meshc.passes.graph.fusing.ffn_block import FeedForward
from meshc.passes.graph.fusing.head import Head
from meshc.passes.graph.fusing.latent_block import LatentBlock
from meshc.passes.graph.fusing.pattern import Pattern

PATTERNS: tuple[Pattern[Any], ...] = (
    LatentBlock(),
    AttentionBlock(),
    FeedForward(),
    Head(),
    Embed(),
)
