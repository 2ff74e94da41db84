"""Attention of a chunk of a prompt: norms of heads, rotation and caches, then tiles of queries."""
