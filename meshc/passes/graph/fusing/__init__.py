"""What fuse-cluster looks for: one pattern per kernel, listed in :mod:`registry`."""
