"""Programs for Tenstorrent chips: operations of tt-lang from the mesh level.

``lanes`` and ``panels`` say where elements of a value lie as tiles, ``operation`` is what an
operation is made of, ``text`` its only printer and ``waits`` what proves that its nodes wait for
nobody in vain; ``pointwise``, ``collectives`` and ``products`` make operations, ``local_ops`` and
``shared_ops`` those of ops of the mesh level, and ``program`` joins them to the files of a phase,
with what its host is told (``given``).
"""
