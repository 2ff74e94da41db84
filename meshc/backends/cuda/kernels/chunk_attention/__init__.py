"""The attention layer of a chunk of a prompt: caches, causal tiles of queries."""
