"""Proofs and costs over affine objects, graphs and devices; reads IR values, edits nothing."""
