"""How the graph of a whole model becomes that of one rank: which dims are dealt, and the ops."""
