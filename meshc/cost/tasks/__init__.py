"""What a step costs whose program is of the task level: what its tasks bring and compute, how
blocks with rings of tiles get through it, and the time and breakdown that come of it.

- ``work``: what each task of a program streams, needs and computes;
- ``tile_times``: how long a block computes at a tile, a task and a meeting, of a device;
- ``blocks``: the discrete events of blocks that share one memory;
- ``steps``: a step's predicted time, by what it is spent on.
"""
