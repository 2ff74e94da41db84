"""Positions and rectangles."""

from meshc.sim.host.sdk_layout import IntRectangle, IntVector

__all__ = ["IntRectangle", "IntVector"]
