"""Write a page, or its main content, as Markdown with headings, lists, tables, code and formulas, but without
links and emphasis.

resiliparse chooses the content and returns it as HTML with few kinds of elements. What this HTML cannot
express is first written into the page as Markdown.
"""

import html
import re
from typing import Any

from pipelines.reading.web.page_formulas import RENDERED, write_formulas

VERSION = "3"
"""Documents with Markdown depend on this version. Increase it when a change gives the same page a different text."""
_TABLE, _INDENT, _BLOCK = "\ufdd0", "\ufdd1", "\ufdd2"  # noncharacters (Unicode, section 23.7), so not in texts
_MARKS = re.compile(f"[{_TABLE}{_INDENT}{_BLOCK}]")
_TOKEN = re.compile(r"(</?[a-z][a-z0-9]*[^<>]*>)")
_TAG = re.compile(r"<(/?)([a-z][a-z0-9]*)")
_CELL = 500  # characters of a cell; a table with a longer one, or with blocks in its cells, is layout
_CODE = "code, kbd, samp, tt"
_BLOCKS = "table, ul, ol, pre, form, h1, h2, h3, h4, h5, h6, blockquote"


def extract_markdown(tree: Any, main_content: bool, comments: bool = False) -> str:
    """Return the page `tree` (resiliparse's HTMLTree) as Markdown: its main content if `main_content`, else
    all of it. Changes the tree.
    """
    from resiliparse.extract.html2text import extract_plain_text

    write_formulas(tree)
    _write_code(tree)
    _write_tables(tree)
    minimal = extract_plain_text(
        tree, preserve_formatting="minimal_html", main_content=main_content, alt_texts=False, comments=comments,
        skip_elements=list(RENDERED),
    )  # fmt: skip
    return to_markdown(minimal)


def _write_code(tree: Any) -> None:
    """Turn the content of `pre` elements that contain code elements into plain text, and enclose inline code
    in backticks (CommonMark, section 6.1).

    An element that contains another of its kind is skipped, so that no text is read twice, however deep the
    nesting.
    """
    for block in tree.document.get_elements_by_tag_name("pre")[:]:
        if block.query_selector("pre") is None and block.query_selector(_CODE) is not None:
            for line_break in block.get_elements_by_tag_name("br")[:]:
                line_break.replace_with(tree.create_text_node("\n"))
            block.replace_children(tree.create_text_node(block.text))
    for element in tree.document.query_selector_all(_CODE)[:]:
        if element.query_selector(_CODE) is not None:
            continue
        if text := " ".join(element.text.split()):
            fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
            space = " " if text[0] == "`" or text[-1] == "`" else ""
            element.replace_children(tree.create_text_node(f"{fence}{space}{text}{space}{fence}"))


def _write_tables(tree: Any) -> None:
    """Replace each data table with a `pre` element that contains the table in Markdown (GitHub Flavored
    Markdown, section 4.10).
    """
    for table in tree.document.get_elements_by_tag_name("table")[:]:
        rows = _data_rows(table)
        if rows is None:
            continue
        width = max(map(len, rows))
        lines = ["| " + " | ".join([*row, *[""] * (width - len(row))]) + " |" for row in rows]
        lines.insert(1, "|" + "---|" * width)
        block = tree.create_element("pre")
        for name in ("id", "class"):  # the extractor judges blocks by these
            if table.hasattr(name):
                block.setattr(name, table.getattr(name))
        block.append_child(tree.create_text_node("\n".join([_TABLE, *lines])))
        table.replace_with(block)


def _data_rows(table: Any) -> list[list[str]] | None:
    """Return the cells of a table by row, without empty rows, or None for a table that serves as layout or
    has fewer than two rows or two columns.
    """
    if table.query_selector(_BLOCKS) is not None:
        return None
    rows = []
    for row in table.get_elements_by_tag_name("tr")[:]:
        cells = [" ".join(cell.text.split()).replace("|", "\\|") for cell in row.query_selector_all("td, th")[:]]
        if any(len(cell) > _CELL for cell in cells):
            return None
        if any(cells):
            rows.append(cells)
    return rows if len(rows) > 1 and max(map(len, rows)) > 1 else None


def to_markdown(minimal: str) -> str:
    """Convert resiliparse's minimal HTML to Markdown. Unknown tags are dropped, but not the text inside them."""
    writer = _Writer()
    for number, token in enumerate(_TOKEN.split(minimal)):
        if number % 2 == 0:
            writer.text(html.unescape(token))
        elif tag := _TAG.match(token):
            writer.tag(tag[2], closes=bool(tag[1]))
    return writer.result()


class _Writer:
    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._blocks: list[str] = []  # code and tables, whose white space is kept
        self._lists: list[int | None] = []  # the number of the last item of each open list; None if it is not numbered
        self._pre: list[str] | None = None
        self._heading = False

    def text(self, text: str) -> None:
        if self._pre is not None:
            self._pre.append(text)
        elif self._heading:
            self._pieces.append(_MARKS.sub("", text).replace("\n", " "))
        elif self._lists:  # every item is one line
            self._pieces.append(_MARKS.sub("", " ".join(text.split())))
        else:
            self._pieces.append(_MARKS.sub("", text))

    def tag(self, name: str, *, closes: bool) -> None:
        if name == "pre":
            self._toggle_pre(closes)
        elif self._pre is not None:
            return
        elif name in ("ul", "ol"):
            if closes and self._lists:
                self._lists.pop()
            elif not closes:
                self._lists.append(0 if name == "ol" else None)
            self._pieces.append("" if self._lists else "\n\n")
        elif name == "li":
            self._pieces.append(" " if closes else self._item())  # text may follow an item, outside of any
        elif name[0] == "h" and name[1:].isdigit():
            self._heading = not closes
            self._pieces.append("\n\n" if closes else "\n\n" + "#" * min(6, int(name[1:])) + " ")
        elif name == "p" and not self._lists:
            self._pieces.append("\n\n")
        elif name in ("p", "br") and self._lists:
            self._pieces.append(" ")

    def _item(self) -> str:
        depth = max(0, len(self._lists) - 1)
        mark = "-"
        if self._lists and (number := self._lists[-1]) is not None:
            self._lists[-1] = number + 1
            mark = f"{number + 1}."
        return "\n" + _INDENT * depth + mark + " "

    def _toggle_pre(self, closes: bool) -> None:
        if closes and self._pre is not None:
            content = "".join(self._pre)
            self._pre = None
            self._pieces.append(f"\n\n{_BLOCK}{len(self._blocks)}{_BLOCK}\n\n")
            self._blocks.append(_block(content))
        elif not closes and self._pre is None:
            self._pre = []

    def result(self) -> str:
        if self._pre is not None:
            self._toggle_pre(True)
        lines = "".join(self._pieces).split("\n")
        text = re.sub(r"\n{3,}", "\n\n", "\n".join(line.strip() for line in lines)).strip("\n")
        text = text.replace(_INDENT, "    ")
        return re.sub(f"{_BLOCK}([0-9]+){_BLOCK}", lambda match: self._blocks[int(match[1])], text)


def _block(content: str) -> str:
    if content.lstrip("\n").startswith(_TABLE):
        return _MARKS.sub("", content).strip("\n")
    content = _MARKS.sub("", content).strip("\n")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", content)), default=0))
    return f"{fence}\n{content}\n{fence}" if content.strip() else ""
