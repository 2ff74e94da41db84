"""From flags to the request that they spell."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace

from meshc.driver import CompileRequest, LoadedModel, find_weights, formats_to_keep
from meshc.driver.weights import AS_STORED, IF_POSSIBLE


def request_of(options: argparse.Namespace) -> CompileRequest:
    """The request of a command's flags; what it has no flag for has its default."""
    names = {field.name for field in fields(CompileRequest)}
    given = {name: value for name, value in vars(options).items() if name in names}
    for name in ("batch", "mesh"):
        if given.get(name) is None:
            del given[name]
    given.pop("keep_quantised", None)
    return CompileRequest(**given | {"algo": tuple(options.algo)})


def keeping(
    request: CompileRequest, options: argparse.Namespace, loaded: LoadedModel
) -> CompileRequest:
    """``request`` with the weights of ``loaded`` that are to stay quantised, as a flag says."""
    asked = options.keep_quantised
    if asked is None:
        return request
    replace(request, keep_quantised=(asked,)).check()
    named = asked not in (AS_STORED, IF_POSSIBLE)
    place = None if named else find_weights(loaded.name, loaded.weights, options.weights)
    formats = formats_to_keep(asked, place, loaded.config, request.layers)
    return replace(request, keep_quantised=formats)
