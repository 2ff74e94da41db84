"""Programs of ``torch.export`` as models in the ``.mesh`` language, with their weights.

A program is followed op by op on tensors whose axes are named dims. What hangs on positions and
constants alone (angles of RoPE, masks) is computed and recognised by its numbers; all else becomes
statements of the language, or is refused by the name of its op.
"""
