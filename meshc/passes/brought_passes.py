"""Passes of other packages: entry points of the group ``meshc.passes``."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any, get_type_hints

from meshc.ir.module import LEVELS
from meshc.passes.base import Pass
from meshc.support import blame, plugins
from meshc.support.diagnostics import MeshcError, Reproducer
from meshc.support.plugins import Offer
from meshc.support.spans import Span
from meshc.verify import FACTS

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")
_OPTION_TYPES = (str, int, float, bool, tuple[str, ...])
_ORIGINS: dict[type[Pass], str] = {}


def loaded(offer: Offer, span: Span | None = None) -> type[Pass]:
    """The class that is offered. Raises ``bad-plugin`` for what is no pass of that name."""
    found: type[Pass] = KIND.loaded(offer, span)
    _ORIGINS[found] = offer.origin
    return found


def origin_of(step: Pass) -> str | None:
    """The package that brought a pass, None for meshc's own and those made by hand."""
    return _ORIGINS.get(type(step))


def failed(step: Pass, origin: str, problem: BaseException, again: Reproducer) -> MeshcError:
    """``bad-plugin`` for a pass of another package that did not do its work, with its own lines or,
    where none was running, where the pass begins; ``again`` is what shows it again."""
    cls = type(step)
    try:
        begins = f"at {inspect.getsourcefile(cls)}:{inspect.getsourcelines(cls)[1]}"
    except (OSError, TypeError):  # a package without its source
        begins = ""
    package = cls.__module__.partition(".")[0]
    return blame.failed(f"pass '{step.NAME}' of {origin}", package, problem, begins, again)


def _fault(name: str, found: Any) -> str:
    """What is wrong with a class that is offered as ``name``, or an empty text."""
    if not isinstance(found, type) or not issubclass(found, Pass):
        return "is no subclass of meshc.Pass"
    params = vars(found).get("__dataclass_params__")
    if params is None or not params.frozen:
        return "is no frozen dataclass"
    if name != found.NAME or not _NAME.match(name):
        return f"calls itself '{found.NAME}'; both names must be the same, such as sink-scales"
    if not found.LEVELS or set(found.LEVELS) - set(LEVELS):
        return f"works on the levels {found.LEVELS}; there are {', '.join(LEVELS)}"
    unknown = sorted((found.REQUIRES | found.ESTABLISHES | found.INVALIDATES) - FACTS.keys())
    if unknown:
        return f"names the fact '{unknown[0]}', which is unknown"
    hints = get_type_hints(found)
    for field in fields(found):
        if hints[field.name] not in _OPTION_TYPES:
            return f"has an option '{field.name}' that is no text, number, truth value or list"
    found()  # all options have defaults
    return ""


KIND = plugins.Kind("meshc.passes", "pass", "docs/passes.md", _fault)
"""Passes of installed packages."""
