"""What every page of the package shares: its colours and tables, small functions of its script, safe embedding.

A page is one file: style, script and data stand inside it, nothing is fetched, and names from data are text only.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2


def render(template: str, **values: Any) -> str:
    """A page from a Jinja template; values are escaped, and one that is missing is an error."""
    return _compiled(template).render(**values)


@functools.cache
def _compiled(template: str) -> jinja2.Template:
    """Compiled once: it takes longer than a small page, and a federation on one machine writes one for each site."""
    import jinja2  # here: most runs write no page

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template)


def asset(package: str, *path: str) -> str:
    """The text of a file that comes with a package."""
    return resources.files(package).joinpath(*path).read_text(encoding="utf-8")


def style() -> str:
    """The CSS that pages share."""
    return asset("fednoil.pages", "base.css")


def script() -> str:
    """The functions that pages' scripts share, as the JavaScript constant `Page`."""
    return asset("fednoil.pages", "base.js")


def embedded(value: Any) -> str:
    """JSON that can stand inside a script element, whatever names it holds."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
