"""Quantised weights of Hugging Face checkpoints: what ``quantization_config`` says; decoding."""
