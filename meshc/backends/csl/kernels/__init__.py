"""Microkernels as CSL: vector operations on DSDs, and functions where a kernel takes several."""
