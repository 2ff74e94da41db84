"""Tokenizers: how files describe them, and the process in which one runs."""
