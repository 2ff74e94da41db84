"""What ``--record`` writes beside the files of a program."""

RECORD = "record.json"
TIMELINE = "timeline.json"
FORMAT = 1
"""The ``format`` of both."""
