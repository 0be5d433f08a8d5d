"""Render HTML pages from templates. Values are escaped, and a page is one file without scripts or external
resources.
"""

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from gristmill.page import formats
from gristmill.page.drawing import series_colour, series_dashes
from gristmill.terminal import printable

if TYPE_CHECKING:
    from jinja2 import Environment


def render_template(template: Path, **values: Any) -> str:
    """Render an HTML template with `values`. Strings are escaped, except those of type `Markup`, such as
    charts.
    """
    return _environment(template.parent).get_template(template.name).render(values)


@cache
def _environment(folder: Path) -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([folder, Path(__file__).parent]),
        autoescape=True,
        finalize=_harmless,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        count=formats.count, decimals=formats.decimals, signed=formats.signed, compact=formats.compact, in_words=formats.in_words,
        size=formats.size, percent=formats.percent, duration=formats.duration, time=formats.time, breakable=_breakable,
        colour=series_colour, dashes=series_dashes,
    )  # fmt: skip
    return environment


def _harmless(value: Any) -> Any:
    return printable(value, lines=True) if isinstance(value, str) and not hasattr(value, "__html__") else value


def _breakable(name: str) -> Markup:
    """Return a name as HTML that browsers may break after its dots and underscores."""
    return Markup(re.sub(r"([._])(?=\w)", r"\1<wbr>", str(escape(_harmless(name)))))
