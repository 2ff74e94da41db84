"""What every op of every level means, in NumPy: the oracle for passes and emitted programs.

Nothing here is shared with passes, analysis or back ends: an oracle that shares code with what it
judges proves nothing.
"""
