"""The host of SDKs before 1.0."""

from meshc.sim.host.elf_runner import CSELFRunner

__all__ = ["CSELFRunner"]
