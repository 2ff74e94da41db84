"""Helpers of host scripts, under the name they had before SDK 1.0."""

from meshc.sim.host.debug import debug_util
from meshc.sim.host.portmaps import (
    convert_input_tensor,
    format_output_tensor,
    output_array_from_u32,
    prepare_output_tensor,
)
from meshc.sim.host.utils import (
    calculate_cycles,
    cast_uint32,
    input_array_to_u32,
    memcpy_view,
)

__all__ = [
    "calculate_cycles",
    "cast_uint32",
    "convert_input_tensor",
    "debug_util",
    "format_output_tensor",
    "input_array_to_u32",
    "memcpy_view",
    "output_array_from_u32",
    "prepare_output_tensor",
]
