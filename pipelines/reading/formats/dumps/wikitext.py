"""Convert wikitext to plain text without expanding the wiki's templates.

The plain text contains paragraphs, headings with text below them, list items (one per line), the labels of
links, the text within formatting and code, and the LaTeX source of formulas. It leaves out templates, tables,
references, galleries, files, categories, comments and magic words. The grammar is that of
https://www.mediawiki.org/wiki/Markup_spec, as far as real pages use it. Every pass is linear in the length of
the page.
"""

import html
import re
from collections.abc import Callable

FILES_AND_CATEGORIES = ("file", "image", "media", "category")
"""Namespaces whose links are not text, by the English names that every wiki understands."""

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
# Elements whose contents are not wikitext and are kept verbatim.
_LITERAL = ("nowiki", "pre", "code", "syntaxhighlight", "source", "math", "chem", "ce")
# Elements that are removed with their contents.
_DROPPED = (
    "ref", "references", "gallery", "timeline", "imagemap", "score", "graph", "mapframe", "maplink", "templatestyles",
    "templatedata", "indicator", "inputbox", "categorytree", "table", "style", "script",
)  # fmt: skip
# Elements that are removed, but not their contents.
_PLAIN = (
    "abbr", "b", "bdi", "bdo", "big", "blockquote", "br", "caption", "center", "cite", "data", "dd", "del", "dfn",
    "div", "dl", "dt", "em", "font", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "includeonly", "ins", "kbd",
    "li", "mark", "noinclude", "ol", "onlyinclude", "p", "poem", "q", "rb", "rp", "rt", "ruby", "s", "samp",
    "section", "small", "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "ul", "var", "wbr",
)  # fmt: skip


def _tags(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"<(/?)({'|'.join(names)})\b([^<>]*)>", re.IGNORECASE)


_LITERAL_TAGS, _DROPPED_TAGS, _PLAIN_TAGS = _tags(_LITERAL), _tags(_DROPPED), _tags(_PLAIN)
_BRACES = re.compile(r"\{\{|\}\}|^[ \t:]*\{\||^[ \t]*\|\}(?!\}(?!\}))", re.MULTILINE)
_BRACKETS = re.compile(r"\[\[|\]\](?!\](?!\]))")  # of `]]]`, the first bracket belongs to the label
_LINK_DEPTH = 16  # links nest in captions of files; deeper ones are not treated as links
_EXTERNAL = re.compile(r"\[(?:https?:|ftps?:|mailto:|news:|irc:)?(?://)?[^\s\[\]]++[ \t]++([^\[\]\n]*+)\]")
_BARE_EXTERNAL = re.compile(r"\[(?:https?:|ftps?:)//[^\s\[\]]+\]")
_EXTERNAL_START = ("http:", "https:", "ftp:", "ftps:", "mailto:", "news:", "irc:", "//")
_QUOTES = re.compile(r"'{2,}")
_MAGIC = re.compile(r"__[A-Z]{3,}__")
_HEADING = re.compile(r"(={1,6})[ \t]*(.+?)[ \t]*\1[ \t]*")
_LIST_MARK = re.compile(r"[*#:;]+[ \t]*")
_RULE = re.compile(r"-{4,}")
_EMPTY_PARENTHESES = re.compile(r"[ \t]?\([ \t,;:/]*\)")
_BLANK_LINES = re.compile(r"\n{3,}")
_SPACES = re.compile(r"[ \t\xa0]+")
_MARK = re.compile("\x7f([0-9]+)\x7f")


def plain_text(wikitext: str, hidden: tuple[str, ...] = ()) -> str:
    """Return the plain text of a page. Links to files and categories are removed; `hidden` holds the names of
    these namespaces in the wiki's language, in lower case.
    """
    kept: list[str] = []

    def keep(content: str) -> str:
        kept.append(html.unescape(content))
        return f"\x7f{len(kept) - 1}\x7f"

    # Literal contents are replaced with marks of U+007F, which is removed from the text, as in MediaWiki.
    text = _COMMENT.sub("", wikitext.replace("\x7f", ""))
    text = _replace_elements(text, _LITERAL_TAGS, keep)
    text = _replace_elements(text, _DROPPED_TAGS, lambda content: "")
    text = _remove_templates(text)
    text = _replace_links(text, {*FILES_AND_CATEGORIES, *hidden})
    text = _BARE_EXTERNAL.sub("", text)
    text = _EXTERNAL.sub(lambda match: match[1] if match[0][1:].lower().startswith(_EXTERNAL_START) else match[0], text)
    text = _PLAIN_TAGS.sub(lambda match: "\n" if match[2].lower() in ("br", "hr", "li", "p") else "", text)
    text = _QUOTES.sub(lambda match: "'" * (1 if len(match[0]) == 4 else max(0, len(match[0]) - 5)), text)
    text = _tidy_lines(html.unescape(_MAGIC.sub("", text)))
    return _MARK.sub(lambda match: kept[int(match[1])], text).strip("\n")


def _replace_elements(text: str, tags: re.Pattern[str], replaced: Callable[[str], str]) -> str:
    """Return the text with each outermost element that `tags` matches replaced with `replaced(its contents)`.
    Self-closing elements, such as `<ref/>`, are removed; elements without an end tag are kept.
    """
    last_end = {tag[2].lower(): tag.start() for tag in tags.finditer(text) if tag[1]}
    pieces, position = [], 0
    name, depth, opened, inside = "", 0, 0, 0
    for tag in tags.finditer(text):
        closing, found, alone = bool(tag[1]), tag[2].lower(), tag[3].rstrip().endswith("/")
        if depth and found == name and not alone:
            depth += -1 if closing else 1 if name == "table" else 0
            if not depth:
                pieces += [text[position:opened], replaced(text[inside : tag.start()])]
                position = tag.end()
        elif not depth and not closing and alone:
            pieces.append(text[position : tag.start()])
            position = tag.end()
        elif not depth and not closing and last_end.get(found, 0) > tag.start():
            name, depth, opened, inside = found, 1, tag.start(), tag.end()
    return "".join([*pieces, text[position:]])


def _remove_templates(text: str) -> str:
    spans: list[tuple[int, int]] = []
    open_at: list[tuple[str, int]] = []
    for token in _BRACES.finditer(text):
        kind = token[0].strip(" \t:")
        if kind in ("{{", "{|"):
            open_at.append((kind, token.start()))
            continue
        opener = "{{" if kind == "}}" else "{|"
        while open_at and open_at[-1][0] != opener and any(kind == opener for kind, _ in open_at[-64:]):
            open_at.pop()  # unclosed inside the construct that closes here
        if open_at and open_at[-1][0] == opener:
            start = open_at.pop()[1]
            while spans and spans[-1][0] > start:
                spans.pop()
            spans.append((start, token.end()))
    pieces, position = [], 0
    for start, end in spans:
        pieces.append(text[position:start])
        position = end
    return "".join([*pieces, text[position:]])


def _replace_links(text: str, hidden: set[str]) -> str:
    """Return the text with each `[[link]]` replaced with its label, and links to files and categories
    removed.

    If more than _LINK_DEPTH links are open, the outermost is kept as written. This bounds the work, because
    closing a link copies its label.
    """
    pieces: list[list[str]] = [[]]
    position = 0
    for token in _BRACKETS.finditer(text):
        pieces[-1].append(text[position : token.start()])
        position = token.end()
        if token[0] == "[[":
            pieces.append([])
            if len(pieces) > _LINK_DEPTH + 1:
                pieces[0] += ["[[", *pieces.pop(1)]
        elif len(pieces) > 1:
            content = "".join(pieces.pop())
            pieces[-1].append(_label(content, hidden))
        else:
            pieces[-1].append("]]")
    pieces[-1].append(text[position:])
    return "[[".join("".join(piece) for piece in pieces)


def _label(content: str, hidden: set[str]) -> str:
    target, _, label = content.partition("|")
    namespace = target.partition(":")[0].strip().lower() if ":" in target else ""
    if namespace in hidden:
        return ""
    return label or target.strip().removeprefix(":")


def _tidy_lines(text: str) -> str:
    """Remove heading and list marks, horizontal rules, empty parentheses and headings without text below
    them, and normalise white space.
    """
    lines: list[tuple[int, str]] = []  # (level of a heading, 0 for text; line)
    for raw in text.split("\n"):
        line = _EMPTY_PARENTHESES.sub("", _SPACES.sub(" ", raw)).strip()
        heading = _HEADING.fullmatch(line)
        if heading:
            lines.append((len(heading[1]), heading[2]))
        else:
            line = _LIST_MARK.sub("", line, count=1) if line[:1] in ("*", "#", ":", ";") else line
            lines.append((0, "" if _RULE.fullmatch(line) else line))
    kept: list[str] = []
    below = 7  # what follows: 1 to 6 a heading of that level, 0 text, 7 the end
    end = True
    for level, line in reversed(lines):
        if level and (end or 0 < below <= level):
            continue
        kept.append(line)
        if line:
            below, end = level, False
    return _BLANK_LINES.sub("\n\n", "\n".join(reversed(kept)))
