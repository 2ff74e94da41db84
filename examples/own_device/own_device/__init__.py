"""The device pocket for meshc: the file beside this one."""

from importlib.resources import files

POCKET = files(__name__) / "pocket.toml"
