"""Collectives of several GPUs over rows of tokens, with what is done to a row on its way."""
