"""Logical weights in the order in which kernels read them, as 16-bit words."""

from meshc.backends.cuda.packing.element_words import words
from meshc.backends.cuda.packing.fragments import in_fragments
from meshc.backends.cuda.packing.kept import Keeping, all_packed
from meshc.backends.cuda.packing.pieces import packed

__all__ = ["Keeping", "all_packed", "in_fragments", "packed", "words"]
