"""Kernels: a folder for each, and what several of them share."""
