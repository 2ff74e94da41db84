"""Stand-in for the vendor package of this name; only on the path inside the simulator."""
