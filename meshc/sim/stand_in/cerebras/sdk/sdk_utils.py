"""Helpers of host scripts."""

from meshc.sim.host.utils import (
    calculate_cycles,
    cast_uint32,
    input_array_to_u32,
    memcpy_view,
)

__all__ = ["calculate_cycles", "cast_uint32", "input_array_to_u32", "memcpy_view"]
