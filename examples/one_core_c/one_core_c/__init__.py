"""A target for meshc: the tile program of one core as C."""
