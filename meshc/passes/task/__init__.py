"""Passes that make programs of the task level, and passes on these."""
