"""What ``--record`` writes beside the files of a program."""

RECORD = "record.json"
TIMELINE = "timeline.json"
FABRIC = "fabric.json"
FORMAT = 1
"""The ``format`` of all."""
