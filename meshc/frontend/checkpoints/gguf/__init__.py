"""GGUF files: metadata, tensors, vocabulary."""
