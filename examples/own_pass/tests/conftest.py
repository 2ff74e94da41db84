"""Fixtures of meshc for tests of passes; ``pytest --update-golden`` rewrites what is expected."""

pytest_plugins = ["meshc.testing"]
