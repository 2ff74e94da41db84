"""Text templates: the only module that imports jinja2.

Templates hold loops and conditions over prepared values, no logic; an undefined name is an error.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined


@cache
def _environment(package: str) -> Environment:
    return Environment(
        loader=PackageLoader(package, "templates"),
        undefined=StrictUndefined,
        autoescape=False,  # programs, not markup; values are quoted by who prepares them
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(package: str, name: str, **values: object) -> str:
    """The template ``name`` of the folder ``templates`` in ``package``, filled in.

    Raises ``jinja2.UndefinedError`` when the template uses a value that is not given.
    """
    return _environment(package).get_template(name).render(**values)
