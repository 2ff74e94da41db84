"""Devices as PLMR numbers: cores, links, memory and routing resources, from a catalogue of TOML."""

from meshc.devices.catalogue import device, device_names, load_device
from meshc.devices.describe import describe
from meshc.devices.device import Clusters, Device, Link, Resource, Routing
from meshc.devices.schema import check_numbers, device_of_numbers

__all__ = [
    "Clusters",
    "Device",
    "Link",
    "Resource",
    "Routing",
    "check_numbers",
    "describe",
    "device",
    "device_names",
    "device_of_numbers",
    "load_device",
]
