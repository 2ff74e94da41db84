"""Text of kernels to machine code, and what it needs: nvcc or NVRTC, cubins, where a toolkit is."""
