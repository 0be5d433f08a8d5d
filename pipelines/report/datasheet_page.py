"""Format a datasheet as Markdown or as a self-contained HTML page."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from gristmill.page.formats import NONE
from gristmill.page.render import render_template
from gristmill.terminal import printable
from pipelines.report.datasheet import Block, Listing

_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$-])|^(\d+)([.)])")
_PARAGRAPHS = re.compile(r"\n\s*\n")


def datasheet_markdown(name: str, sections: Mapping[str, Sequence[Block]]) -> str:
    """Return the datasheet of the corpus `name` as Markdown. Section titles and column headings are not
    escaped.
    """
    body = [f"## {title}\n\n" + "\n\n".join(map(_block, blocks)) for title, blocks in sections.items()]
    return "\n\n".join([f"# Datasheet of {_text(name)}", *body]) + "\n"


def datasheet_page(name: str, sections: Mapping[str, Sequence[Block]]) -> str:
    """Return the datasheet of the corpus `name` as an HTML page."""
    shown = [
        {"id": title.lower().replace(" ", "-"), "title": title, "blocks": [_parts(block) for block in blocks]}
        for title, blocks in sections.items()
    ]
    return render_template(Path(__file__).with_name("datasheet.html"), title=name, kind="datasheet", shown=shown)


def _parts(block: Block) -> dict[str, object]:
    if isinstance(block, str):
        return {"kind": "text", "paragraphs": _PARAGRAPHS.split(block.strip())}
    if isinstance(block, Listing):
        return {"kind": "list", "entries": block.entries}
    numeric = [any(isinstance(row[i], int) for row in block.rows) for i in range(len(block.heading))]
    rows = [[_cell(value) for value in row] for row in block.rows]
    return {"kind": "table", "heading": block.heading, "rows": rows, "numeric": numeric}


def _block(block: Block) -> str:
    if isinstance(block, str):
        return "\n\n".join(map(_text, _PARAGRAPHS.split(block.strip())))
    if isinstance(block, Listing):
        return "\n".join(f"- {_text(entry)}" for entry in block.entries)
    rows = [[_text(_cell(value)) for value in row] for row in block.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in [block.heading, ["---"] * len(block.heading), *rows])


def _cell(value: str | int | None) -> str:
    return NONE if value is None else f"{value:,}" if isinstance(value, int) else value


def _text(value: str) -> str:
    """Escape a text so that Markdown shows it literally, on one line."""
    line = printable(" ".join(value.split())).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(lambda found: f"\\{found[1]}" if found[1] else f"{found[2]}\\{found[3]}", line)
