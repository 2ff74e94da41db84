"""What fuse-chunk looks for: one pattern per kernel, listed in :mod:`registry`."""
