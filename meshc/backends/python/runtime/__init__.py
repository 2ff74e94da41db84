"""Run-time support of emitted programs: cores in lockstep, their memory, channels and ports.

Needs NumPy only. A program declares buffers, channels and guards on a :class:`Phase`, and its
statements call kernels on views, send and receive. No core can reach what another core holds.
"""

from .channels import Channel, ChannelError, Token, wait
from .cores import Cores, Fabric, Sweep, memo
from .host import HostError, LanguageModel, TensorProgram, Weights, read_array
from .memory import Buffer, Span, View, span
from .percore import Coordinates, IsolationError, Mesh, PerCore
from .phase import Phase, Recorded
from .ports import PortError, element
from .routes import Hop

__all__ = [
    "Buffer",
    "Channel",
    "ChannelError",
    "Coordinates",
    "Cores",
    "Fabric",
    "Hop",
    "HostError",
    "IsolationError",
    "LanguageModel",
    "Mesh",
    "PerCore",
    "Phase",
    "PortError",
    "Recorded",
    "Span",
    "Sweep",
    "TensorProgram",
    "Token",
    "View",
    "Weights",
    "element",
    "memo",
    "read_array",
    "span",
    "wait",
]
