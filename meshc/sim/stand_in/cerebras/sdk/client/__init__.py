"""Names that host scripts import for running programs on an appliance."""

from meshc.sim.host import utils as sdk_utils
from meshc.sim.host.appliance import SdkCompiler, SdkLauncher, SdkRuntime

__all__ = ["SdkCompiler", "SdkLauncher", "SdkRuntime", "sdk_utils"]
