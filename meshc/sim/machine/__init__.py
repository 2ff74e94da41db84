"""The executable model of the wafer: PEs, tasks, vector operations, routers, time."""
