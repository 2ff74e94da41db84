"""The patterns of all kernels."""

from __future__ import annotations

from meshc.passes.graph.fusing.attention_block import AttentionBlock
from meshc.passes.graph.fusing.embed import Embed
from meshc.passes.graph.fusing.ffn_block import FeedForward
from meshc.passes.graph.fusing.head import Head
from meshc.passes.graph.fusing.pattern import Pattern

PATTERNS: tuple[Pattern, ...] = (AttentionBlock(), FeedForward(), Head(), Embed())
