"""Norms and products of all tokens of a chunk, which several fused ops are made of."""
