"""Passes of other packages: entry points of the group ``meshc.passes``.

A package is imported only when one of its passes is asked for. What is wrong with it is the fault
of neither the user nor meshc, so messages name the package.
"""

from __future__ import annotations

import inspect
import re
import traceback
from dataclasses import fields
from typing import Any, NoReturn, get_type_hints

from meshc.ir.module import LEVELS
from meshc.passes.base import Pass
from meshc.support import plugins
from meshc.support.diagnostics import fail
from meshc.support.plugins import Offer, words
from meshc.support.spans import Span
from meshc.verify import FACTS

GROUP = "meshc.passes"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")
_OPTION_TYPES = (str, int, float, bool, tuple[str, ...])
_ORIGINS: dict[type[Pass], str] = {}


def offers() -> tuple[Offer, ...]:
    """What all installed packages offer, by name; nothing is imported. Raises ``bad-plugin``."""
    return plugins.offers(GROUP)


def loaded(offer: Offer, span: Span | None = None) -> type[Pass]:
    """The class that is offered. Raises ``bad-plugin`` for what is no pass of that name."""
    found: type[Pass] = plugins.loaded(offer, "pass", _fault, "docs/passes.md", span)
    _ORIGINS[found] = offer.origin
    return found


def origin_of(step: Pass) -> str | None:
    """The package that brought a pass, None for meshc's own and those made by hand."""
    return _ORIGINS.get(type(step))


def failed(step: Pass, origin: str, problem: BaseException) -> NoReturn:
    """Raise ``bad-plugin`` for a pass of another package that did not do its work."""
    fail(
        "bad-plugin",
        f"pass '{step.NAME}' of {origin} failed: {words(problem)}",
        notes=_places(type(step), problem),
        help="this is a fault of that package, or the module is not what it expects",
    )


def _places(step: type[Pass], problem: BaseException) -> list[str]:
    """The innermost line of the package itself that was running, or else where its pass begins."""
    package = step.__module__.partition(".")[0]
    for frame, line in reversed([*traceback.walk_tb(problem.__traceback__)]):
        if str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            return [f"at {frame.f_code.co_filename}:{line}"]
    try:
        return [f"at {inspect.getsourcefile(step)}:{inspect.getsourcelines(step)[1]}"]
    except (OSError, TypeError):  # a package without its source
        return []


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
