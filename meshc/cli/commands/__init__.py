"""One file per command, each with ``add_to(commands)``."""
