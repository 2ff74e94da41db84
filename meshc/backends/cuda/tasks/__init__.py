"""Programs of tasks as CUDA: one kernel whose blocks stay, over the library."""
