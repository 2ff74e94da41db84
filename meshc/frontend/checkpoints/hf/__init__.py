"""Configs of Hugging Face models."""
