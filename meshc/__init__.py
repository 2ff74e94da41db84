"""meshc: a tensor-program compiler with a mesh IR."""
