"""Functions of arrays as microkernels: on views, on the cores that run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .cores import Cores, act
from .memory import View
from .percore import PerCore

Kernel = Callable[..., None]  # (out, *views, on=None, **params)


def kernel(updates: bool = False) -> Callable[[Callable[..., None]], Kernel]:
    """Make a function of arrays ``[cores, ..]`` a microkernel on views.

    The first array is written in place; with ``updates`` it is read as well. A parameter that
    differs between cores arrives as an array ``[cores]``.
    """

    def wrap(compute: Callable[..., None]) -> Kernel:
        def run(out: View, *views: View, on: Cores | None = None, **params: Any) -> None:
            cores = out.fabric.running(on)
            if not cores.count:
                return
            for name, value in params.items():
                if isinstance(value, PerCore):
                    params[name] = out.fabric.by_lane(value)[cores.lanes]
            bound = partial(compute, **params) if params else compute
            arrays = [view.direct(cores) for view in (out, *views)]
            if any(array is None for array in arrays):
                act(out.fabric, _on_copies, bound, updates, cores, out, *views)
            else:
                act(out.fabric, bound, *arrays)
                if out.rounds is not None:
                    act(out.fabric, out.rounds, arrays[0])

        run.__name__ = run.__qualname__ = compute.__name__
        run.__doc__ = compute.__doc__
        return run

    return wrap


def _on_copies(
    compute: Callable[..., None], updates: bool, cores: Cores, out: View, *views: View
) -> None:
    """As ``compute`` on the memory of views, of which some are scattered in it."""
    target = out.direct(cores)
    if target is not None:
        result = target
    elif updates:
        result = out.load(cores)
    else:
        result = np.empty((cores.count, *out.shape), out.memory.array.dtype)
    compute(result, *[view.read(cores) for view in views])
    if out.rounds is not None:
        out.rounds(result)
    if target is None:
        out.store(cores, result)
