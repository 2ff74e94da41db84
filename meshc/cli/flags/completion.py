"""Flags of ``meshc completion``."""

from __future__ import annotations

from typing import Any

_DESCRIPTION = """\
Print a script that lets a shell complete commands, flags and names. bash and zsh: put
eval "$(meshc completion SHELL)" into ~/.bashrc or ~/.zshrc (there behind compinit); fish:
meshc completion fish > ~/.config/fish/completions/meshc.fish
"""


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "completion", help="print a script for completion in a shell", description=_DESCRIPTION
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
