"""From flags to the request that they spell."""

from __future__ import annotations

import argparse
from dataclasses import fields

from meshc.driver import CompileRequest


def request_of(options: argparse.Namespace) -> CompileRequest:
    """The request of a command's flags; what it has no flag for has its default."""
    names = {field.name for field in fields(CompileRequest)}
    given = {name: value for name, value in vars(options).items() if name in names}
    for name in ("batch", "mesh"):
        if given.get(name) is None:
            del given[name]
    return CompileRequest(**given | {"algo": tuple(options.algo)})
