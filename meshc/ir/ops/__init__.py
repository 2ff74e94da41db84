"""The operations of the four levels, one file each; importing this package registers all."""

from meshc.ir.ops import batches, graph, mesh, ranks, task, tile

__all__ = ["batches", "graph", "mesh", "ranks", "task", "tile"]
