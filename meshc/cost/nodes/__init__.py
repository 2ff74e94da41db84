"""What an iteration costs on GPUs of a node in tensor parallel, kernel by kernel.

``products`` counts waves of blocks, ``ranks`` has the kernels of a layer on one GPU and its
collectives, ``overlap`` lays them out on two streams, ``splitting`` chooses where a batch is cut.
The scheme is that of TokenWeave (Gond and others, arXiv 2505.11329).
"""
