"""The HTML around the data of a page: one file that needs no other. The only module of the page
that imports jinja2."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from meshc.view.data import as_script

_SCRIPTS = (
    "core.js",
    "passes.js",
    "files.js",
    "graph.js",
    "mesh.js",
    "fabric.js",
    "bars.js",
    "timeline.js",
    "main.js",
)


def page_of(data: Mapping[str, Any]) -> str:
    """The page that shows ``data``. All of it is text to the page, whatever names hold."""
    environment = Environment(
        loader=PackageLoader("meshc.view", "browser"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    folder = resources.files("meshc.view") / "browser"
    parts = {name: (folder / name).read_text(encoding="utf-8") for name in (*_SCRIPTS, "view.css")}
    return environment.get_template("page.html.jinja").render(
        title=f"{data['model']} on {data['device']}",
        style=parts["view.css"],
        script="\n".join(parts[name] for name in _SCRIPTS),
        data=as_script(data),
    )
