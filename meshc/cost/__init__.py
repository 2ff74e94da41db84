"""What programs cost on a device, in the terms of the PLMR model: one place for all predictions.

Every function takes a device and gives a :class:`~meshc.cost.terms.Cost`, whose parts say what the
time is spent on. Where the numbers come from is the device's to say: one that is ``watched()``
remembers which of them were asked for.

- ``operations``: a product of tiles, a message, steps in which both overlap;
- ``reductions``: pipelines, K-trees and rings;
- ``products``: distributed products by each algorithm;
- ``programs``: a whole tile program, counted from its statements;
- ``clusters``, ``latent``: kernels of thread-block clusters;
- ``transformers``: prefill and decode of the kernels that WaferLLM measured.
"""
