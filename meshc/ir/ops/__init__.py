"""The operations of the three levels, one file each; importing this package registers all."""

from meshc.ir.ops import batches, graph, mesh, ranks, tile

__all__ = ["batches", "graph", "mesh", "ranks", "tile"]
