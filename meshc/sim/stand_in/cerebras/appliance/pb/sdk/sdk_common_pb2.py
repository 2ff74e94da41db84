"""Kinds of transfers."""

from meshc.sim.host.api import MemcpyDataType, MemcpyOrder

__all__ = ["MemcpyDataType", "MemcpyOrder"]
