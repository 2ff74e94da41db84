"""Kernels: their shapes, division of work, shared memory and text."""
