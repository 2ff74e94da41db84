"""CUDA for thread-block clusters: kernels over one library of primitives."""
