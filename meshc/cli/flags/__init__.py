"""The flags of the commands: ``add_to(commands)`` in a file per command, and groups of flags.

Nothing here imports what the commands work with, so that help, completion and a usage error come
at once; ``meshc.cli.commands`` has the work.
"""
