"""Expansions of mesh ops into tile statements, by kind of op; used by expand-programs."""
