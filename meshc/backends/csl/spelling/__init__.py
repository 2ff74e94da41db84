"""How parts of a program are written as CSL: names, expressions, guards, windows, descriptors."""
