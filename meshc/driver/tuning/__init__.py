"""Tuning: many configurations of a model on a device, and which of them nothing else beats.

``configurations`` says what one is and what it gives, as ``driver/planning`` plans it; ``space``
which are tried, ``fronts`` which are best, ``results`` keeps them in a file from which
an interrupted run goes on, and ``tuner`` is asked.
"""
