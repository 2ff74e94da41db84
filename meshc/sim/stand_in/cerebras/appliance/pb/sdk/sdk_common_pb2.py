"""Kinds of transfers."""

from meshc.sim.host.host_classes import MemcpyDataType, MemcpyOrder

__all__ = ["MemcpyDataType", "MemcpyOrder"]
