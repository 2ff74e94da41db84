"""Plans: whether a model fits a device, how fast it is there, on what, and why.

``plans`` is asked; ``wafers``, ``gpus`` and ``nodes`` answer for devices of their kind, ``meshes``
looks for the best mesh, ``cures`` for what would fit. All of it is read off the modules that the
compiler makes, and predicted by ``meshc/cost``.
"""
