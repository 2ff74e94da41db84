"""A package that brings one pass for meshc."""
