"""Programs for Tenstorrent chips: operations of tt-lang from the mesh level.

``lanes`` and ``panels`` say where elements of a value lie as tiles, ``operation`` is what an
operation is made of, ``text`` its only printer and ``waits`` what proves that its nodes wait for
nobody in vain; ``pointwise``, ``reductions`` and ``products`` make operations of mesh ops,
``program`` joins them to the files of a phase.
"""
