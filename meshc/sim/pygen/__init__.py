"""The Python back end: lowered functions become Python functions over one PE's memory."""
