"""Serving: schedulers of requests, and a simulator that drives them.

``scheduler`` decides by iteration which prompt tokens pass which layers, and who decodes;
it knows nothing of time, so that the same object drives simulations and real programs. ``policies``
are its settings. ``simulator`` keeps the clocks of GPUs by the costs in ``meshc.cost``; ``metrics``
says what a run means, ``comparing`` repeats runs over seeds, ``choosing`` takes the best policy.
"""
