"""Modules in MLIR's generic form, for tools that read that: written and read back to the same."""

from meshc.mlir.reader import read_mlir
from meshc.mlir.writer import print_mlir

__all__ = ["print_mlir", "read_mlir"]
