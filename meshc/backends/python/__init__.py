"""Python back end: a tile program as readable NumPy that runs all cores in lockstep."""

from meshc.backends.python.emit import emit
from meshc.backends.python.host_file import HostFacts
from meshc.backends.python.in_process import load_program

__all__ = ["HostFacts", "emit", "load_program"]
