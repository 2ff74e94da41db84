"""Published tables, figures and claims beside what meshc predicts: ``meshc reproduce``.

``wafers``, ``clusters``, ``servers``, ``nodes`` and ``steps`` make the sections of a paper each,
``sections`` knows all of them, ``demands`` says how near they are to be, ``page`` prints them.
"""
