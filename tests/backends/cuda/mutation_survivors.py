"""Mutations that nothing notices, by the reason why they change nothing that may be observed."""

EQUIVALENT: dict[str, tuple[str, ...]] = {}
