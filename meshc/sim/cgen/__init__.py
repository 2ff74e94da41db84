"""The C back end: lowered functions become C, run by a machine written in C."""
