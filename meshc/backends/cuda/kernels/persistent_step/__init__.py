"""A whole decode step as one kernel whose blocks stay on their multiprocessors."""
