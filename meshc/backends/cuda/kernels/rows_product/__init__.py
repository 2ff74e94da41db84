"""Products of vectors with a matrix by rows, which several fused ops are made of."""
