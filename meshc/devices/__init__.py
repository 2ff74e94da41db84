"""Devices as PLMR numbers: cores, links, memory and routing resources, from a catalogue of TOML."""

from meshc.devices.axes import WAFER, AxisNames
from meshc.devices.catalogue import brought_devices, device, device_names, load_device
from meshc.devices.checks import check_device, device_of
from meshc.devices.describe import describe
from meshc.devices.device import Clusters, Device, Link, Resource, Routing, WatchedDevice
from meshc.devices.keys import FACTS, KEYS, KINDS, LINK, NUMBERS, Kind, key_of
from meshc.devices.numbers import Number, Numbers

__all__ = [
    "FACTS",
    "KEYS",
    "KINDS",
    "LINK",
    "NUMBERS",
    "WAFER",
    "AxisNames",
    "Clusters",
    "Device",
    "Kind",
    "Link",
    "Number",
    "Numbers",
    "Resource",
    "Routing",
    "WatchedDevice",
    "brought_devices",
    "check_device",
    "describe",
    "device",
    "device_names",
    "device_of",
    "key_of",
    "load_device",
]
