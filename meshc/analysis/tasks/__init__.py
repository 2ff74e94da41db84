"""Programs of the task level: their regions, who gives what is needed, and in which order."""
