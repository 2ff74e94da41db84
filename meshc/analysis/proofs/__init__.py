"""Proofs about affine objects and graphs."""
