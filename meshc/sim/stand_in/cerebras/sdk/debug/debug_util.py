"""Reading symbols and traces after a run."""

from meshc.sim.host.debug import debug_util

__all__ = ["debug_util"]
