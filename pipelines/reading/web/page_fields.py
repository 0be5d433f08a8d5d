"""The title, date, author and language that a page declares, as fields of `meta`. The names of the fields
begin with `page_`, because a record may already have a title or the date of a crawl.

The page's meta elements (Open Graph, Dublin Core and the names in common use) take precedence, then JSON-LD
of schema.org for date and author, then other HTML elements. For the language only, the `lang` attribute of
`html` comes before the meta elements. Nothing is guessed from the text.
"""

import html
import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from datetime import date
from typing import Any

VERSION = "3"
"""Documents with these fields depend on this version. Increase it when a code change alters the values."""
_CHARACTERS = 500  # kept of a value
_JSON_CHARACTERS, _JSON_NODES = 1 << 18, 10_000  # parsed of JSON-LD
_TITLES = ("og:title", "twitter:title", "dc.title", "dcterms.title", "citation_title")
_DATES = ("article:published_time", "datepublished", "dc.date.issued", "dcterms.issued", "dcterms.created", "dc.date",
          "dcterms.date", "citation_publication_date", "citation_date", "parsely-pub-date", "sailthru.date", "pubdate",
          "publishdate", "publish_date", "publish-date", "date", "og:article:published_time")  # fmt: skip
_AUTHORS = ("author", "article:author", "dc.creator", "dcterms.creator", "citation_author", "parsely-author",
            "sailthru.author", "byl")  # fmt: skip
_LANGUAGES = ("content-language", "og:locale", "dc.language", "dcterms.language", "language")
_DATE = re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})")
_LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*")
_URL = re.compile(r"https?://", re.IGNORECASE)


def page_fields(tree: Any) -> dict[str, str]:
    """Return the title, date, author and language that a page declares, keyed by `page_title`, `page_date`,
    `page_author` and `page_language`. A field that the page does not declare is absent. `tree` is
    resiliparse's HTMLTree.

    `page_date` is the day of publication, as YYYY-MM-DD. `page_language` is the declared language tag, with
    `-` in place of `_` as in BCP 47.
    """
    metas, linked = _metas(tree), list(_linked_data(tree))
    title = _first(metas, _TITLES, _text) or _first_of(_text(tree.title or ""), _element(tree, "h1"))
    date = _first(metas, _DATES, _day) or _first_of(
        *(_day(str(entry.get("datePublished", ""))) for entry in linked),
        _time(tree),
    )
    author = _first(metas, _AUTHORS, _name) or _first_of(
        *(_names(entry.get("author")) for entry in linked), _element(tree, '[rel="author"], [itemprop="author"]')
    )
    language = _tag(_attribute(tree, "html[lang]", "lang")) or _first(metas, _LANGUAGES, _tag)
    found = {"title": title, "date": date, "author": author, "language": language}
    return {f"page_{name}": value for name, value in found.items() if value}


def _metas(tree: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for element in tree.document.query_selector_all("meta[content]")[:]:
        for attribute in ("property", "name", "itemprop", "http-equiv"):
            if name := (element.getattr(attribute) or "").strip().lower():
                found.setdefault(name, []).append(element.getattr("content"))
                break
    return found


def _first(metas: dict[str, list[str]], names: tuple[str, ...], read: Callable[[str], str]) -> str:
    return _first_of(*(read(value) for name in names for value in metas.get(name, ())))


def _first_of(*values: str) -> str:
    return next(filter(None, values), "")


def _text(value: str) -> str:
    return " ".join(value.split())[:_CHARACTERS]


def _name(value: str) -> str:
    return "" if _URL.match(value.strip()) else _text(value)


def _day(value: str) -> str:
    match = _DATE.match(value.strip())
    if match is None:
        return ""
    try:
        return date(*map(int, match.groups())).isoformat()
    except ValueError:
        return ""


def _tag(value: str) -> str:
    value = value.split(",")[0].strip()
    return value.replace("_", "-") if _LANGUAGE.fullmatch(value) else ""


def _element(tree: Any, selector: str) -> str:
    element = tree.document.query_selector(selector)
    return "" if element is None else _name(element.text)


def _attribute(tree: Any, selector: str, name: str) -> str:
    element = tree.document.query_selector(selector)
    return "" if element is None else str(element.getattr(name) or "")


def _time(tree: Any) -> str:
    """Return the day in the first `time` element that is marked as the date of publication. Failing that,
    return the day that all dated `time` elements of the page share, or an empty string if they differ.
    """
    marked = _day(_attribute(tree, 'time[itemprop="datePublished"], time[pubdate]', "datetime"))
    times = tree.document.query_selector_all("time[datetime]")[:]
    days = {_day(element.getattr("datetime")) for element in times} - {""}
    return marked or (days.pop() if len(days) == 1 else "")


def _linked_data(tree: Any) -> Iterator[dict[str, Any]]:
    """Yield the JSON-LD objects that have a date of publication, or an author and a headline."""
    for script in tree.document.query_selector_all('script[type="application/ld+json"]')[:]:
        content = script.text
        if len(content) > _JSON_CHARACTERS:
            continue
        try:
            waiting = deque([json.loads(content)])
        except (ValueError, RecursionError):
            continue
        left = _JSON_NODES
        while waiting and left:
            left -= 1
            node = waiting.popleft()
            if isinstance(node, dict):
                if "datePublished" in node or ("author" in node and "headline" in node):
                    yield node
                waiting += [value for value in node.values() if isinstance(value, dict | list)]
            elif isinstance(node, list):
                waiting += [value for value in node if isinstance(value, dict | list)]


def _names(author: Any) -> str:
    """Return the distinct names in a schema.org `author`, joined with `; `. HTML parsers do not decode
    entities in scripts, so they are decoded here.
    """
    entries = author if isinstance(author, list) else [author]
    names = [entry.get("name") if isinstance(entry, dict) else entry for entry in entries]
    read = (_name(html.unescape(name)) for name in names if isinstance(name, str))
    return "; ".join(dict.fromkeys(filter(None, read)))[:_CHARACTERS]
