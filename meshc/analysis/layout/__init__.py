"""Where things lie: coordinates, tiles, rings, and buffers in a core's memory."""
