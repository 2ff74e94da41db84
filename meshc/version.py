"""The version of meshc; ``pyproject.toml`` reads it from here."""

VERSION = "0.1.0"
