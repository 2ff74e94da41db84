"""Symbols and traces of a finished run."""

from __future__ import annotations
