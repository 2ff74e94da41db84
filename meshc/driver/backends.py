"""What runs the programs of a target: found by name, opened, and given a program to load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from meshc.backends.host_protocols import Backend, Host, Loading
from meshc.backends.registry import target_names
from meshc.backends.target import Engine, Target, target_named
from meshc.support.diagnostics import fail


def _targets() -> Iterator[Target]:
    """All targets, meshc's own first, each imported when it is its turn."""
    return map(target_named, target_names())


def is_backend(name: str) -> bool:
    """Whether anything that runs programs is called ``name``."""
    return any(name in target.BACKENDS for target in _targets())


def known_backends() -> tuple[str, ...]:
    """All names of backends."""
    return tuple(name for target in _targets() for name in target.BACKENDS)


@contextmanager
def opened(target: str, name: str = "") -> Iterator[Backend]:
    """The backend called ``name``, or the usual one of ``target``, before anything is compiled or
    read for it. Usual for CUDA is a GPU that runs the kernels, else the CPU.

    Raises ``bad-argument`` for another target's backend, and what opening a GPU does.
    """
    _check_fits(target, name)
    with target_named(target).opened(name) as backend:
        yield backend


def _check_fits(target: str, name: str) -> None:
    fitting = target_named(target).BACKENDS
    if not fitting:
        known = " or ".join(one for one in target_names() if target_named(one).BACKENDS)
        fail(
            "bad-argument",
            f"meshc runs no programs for --target {target}",
            help=f"run takes --target {known}",
        )
    if name and name not in fitting:
        fail(
            "bad-argument",
            f"a program for {target} does not run with --backend {name}",
            help=f"it runs with {', '.join(fitting)}",
        )


def _running(backend: Backend) -> Target:
    """The target whose programs ``backend`` runs."""
    return next(target for target in _targets() if backend.name in target.BACKENDS)


def load_host(loading: Loading) -> Host:
    """The language model of a program with its weights, ready to generate."""
    return _running(loading.backend).load(loading)


def load_engine(loading: Loading) -> Engine:
    """The language model of a program that was compiled to serve, with its weights."""
    return _running(loading.backend).load_engine(loading)
