"""Predicted cycles of an emitted program."""
