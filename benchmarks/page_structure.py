"""Compare the fields that we take from pages, and the elements of our Markdown, with trafilatura's own
output.

    python -m benchmarks.page_structure [--pages 990] [--compare fields,markdown]
          data: $GRISTMILL_DATA/raw_web

Fields: the table counts the pages on which `page_fields` finds a field, on which trafilatura's
`extract_metadata` does, and on which both do. Values that both find are equal (apart from case, white space
and the order of names), one within the other (such as a title with the name of the site), or different.
`extract_metadata` takes no language from a page, so for languages trafilatura's check of a page's declared
language is applied to the language that we find.

Markdown: headings, list items, table rows, code and formulas, compared by their letters and digits, in
`markup: markdown` with resiliparse and in trafilatura's Markdown of the same pages. For the elements of each
side, the table counts those that the other side also has, those whose text it has without the mark, and those
whose text it left out. A page is equal if both sides have the same set of elements. Pages without such
elements on either side are not counted.
"""

import argparse
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.extraction import payloads, timed
from benchmarks.signals import machine
from pipelines.reading.web.charset import decode_page
from pipelines.reading.web.extraction import extract_with_resiliparse, extract_with_trafilatura
from pipelines.reading.web.page_fields import page_fields

FIELDS = ("title", "date", "author", "language")
EXAMPLES = 3  # printed of every kind of difference
_LETTERS = re.compile(r"[\W_]+")
_HEADING, _ITEM = re.compile(r"#{1,6} (.+)"), re.compile(r" *(?:[-*+]|\d+\.) (.+)")
_ROW, _RULE = re.compile(r"\|(.*)\|"), re.compile(r"\|[-:| ]+\|")
_SPAN = re.compile(r"(`+)(.+?)\1")
_FORMULA = re.compile(r"\$\$?([^$\n]*[\\^_={][^$\n]*)\$\$?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=990)
    parser.add_argument("--compare", default="fields,markdown", help="names, divided by commas")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    path = Path(os.environ["GRISTMILL_DATA"]) / "raw_web" / "trafilatura_pages.warc.gz"
    htmls = [decode_page(page, "").text for page in islice(payloads(path), options.pages)]
    print(f"{machine()}; {len(htmls)} pages of {path.name}")
    if "fields" in options.compare:
        compare_fields(htmls)
    if "markdown" in options.compare:
        compare_markdown(htmls)


def compare_fields(htmls: list[str]) -> None:
    from resiliparse.parse.html import HTMLTree
    from trafilatura import extract_metadata

    ours, fast = timed(lambda: [page_fields(HTMLTree.parse(html)) for html in htmls])
    theirs, slow = timed(lambda: [extract_metadata(html) for html in htmls])
    cost = f"{fast / len(htmls) * 1e3:.1f} and {slow / len(htmls) * 1e3:.1f} ms a page"
    print(f"fields      ours  theirs  both  equal  within  different   ({cost})")
    examples: dict[str, list[str]] = defaultdict(list)
    for name in FIELDS[:3]:
        pairs = [
            (a.get(f"page_{name}") or "", (getattr(b, name, None) or "") if b else "")
            for a, b in zip(ours, theirs, strict=True)
        ]
        kinds = Counter(difference(a, b) for a, b in pairs if a and b)
        for kind in ("within", "different"):
            examples[f"{name}, {kind}"] = [f"{a!r} / {b!r}" for a, b in pairs if a and b and difference(a, b) == kind]
        examples[f"{name}, only theirs"] = [repr(b) for a, b in pairs if b and not a]
        counts = [sum(bool(a) for a, _ in pairs), sum(bool(b) for _, b in pairs), sum(kinds.values())]
        print(f"{name:10s} {counts[0]:5d} {counts[1]:7d} {counts[2]:5d} {kinds['equal']:6d} {kinds['within']:7d} "
              f"{kinds['different']:10d}")  # fmt: skip
    compare_languages(htmls, [found.get("page_language", "") for found in ours])
    for kind, found in examples.items():
        print(f"  {kind} ({len(found)}): " + "; ".join(each[:160] for each in found[:EXAMPLES]))


def compare_languages(htmls: list[str], ours: list[str]) -> None:
    """Print on how many pages trafilatura's check of the declared language agrees with the language that we
    find.
    """
    from trafilatura.utils import check_html_lang, load_html

    agrees = [
        check_html_lang(tree, tag.split("-")[0].lower(), strict=True)
        for html, tag in zip(htmls, ours, strict=True)
        if tag and (tree := load_html(html)) is not None
    ]
    print(
        f"language   {sum(map(bool, ours)):5d} declared; trafilatura's check agrees on {sum(agrees)} of {len(agrees)}"
    )


def difference(ours: str, theirs: str) -> str:
    """Return `equal`, `within` (one contains the other) or `different`."""
    a, b = (sorted(filter(None, map(letters, re.split(r"[;,]| and ", value)))) for value in (ours, theirs))
    if a == b or letters(ours) == letters(theirs):
        return "equal"
    return "within" if letters(ours) in letters(theirs) or letters(theirs) in letters(ours) else "different"


def letters(text: str) -> str:
    return _LETTERS.sub("", text).casefold()


def compare_markdown(htmls: list[str]) -> None:
    from resiliparse.parse.html import HTMLTree

    ours, fast = timed(lambda: [extract_with_resiliparse(html, HTMLTree.parse(html), "markdown") for html in htmls])
    theirs, slow = timed(lambda: [extract_with_trafilatura(html, None, "markdown") for html in htmls])
    cost = f"{fast / len(htmls) * 1e3:.1f} and {slow / len(htmls) * 1e3:.1f} ms a page"
    print(f"Markdown   pages, equal   ours: both / unmarked there / left out there   theirs: the same   ({cost})")
    sides = [[parts_by_kind(text) for text in texts] for texts in (ours, theirs)]
    examples: dict[str, list[str]] = defaultdict(list)
    for kind in ("headings", "items", "rows", "code", "formulas"):
        pages = [(a[kind], b[kind]) for a, b in zip(*sides, strict=True) if a[kind] or b[kind]]
        equal = sum(a.keys() == b.keys() for a, b in pages)
        fates = []
        for mine, other, texts in ((0, 1, theirs), (1, 0, ours)):
            fate: Counter[str] = Counter()
            for number, text in enumerate(texts):
                plain = letters(text)
                for part, shown in sides[mine][number][kind].items():
                    name = fate_of(part, sides[other][number][kind], plain)
                    fate[name] += 1
                    examples[f"{kind}, {('ours', 'theirs')[mine]}, {name} there"].append(shown)
            fates.append(" / ".join(f"{fate[name]}" for name in ("both", "unmarked", "left out")))
        print(f"{kind:10s} {len(pages):4d} {equal:5d}   {fates[0]:>24s}   {fates[1]:>24s}")
    for name, found in examples.items():
        if "both" not in name:
            print(f"  {name} ({len(found)}): " + "; ".join(json.dumps(each[:90]) for each in found[:EXAMPLES]))


def fate_of(part: str, there: Any, plain: str) -> str:
    if part in there:
        return "both"
    return "unmarked" if part in plain else "left out"


def parts_by_kind(text: str) -> dict[str, dict[str, str]]:
    """Return the elements of a Markdown text by kind, each kind as {letters and digits of the element: its
    text}.
    """
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for kind, part in _parts(text):
        if key := letters(part):
            found[kind].setdefault(key, part)
    return found


def _parts(text: str) -> Iterator[tuple[str, str]]:
    fence = ""
    block: list[str] = []
    for line in text.split("\n"):
        mark = re.match(r" *(`{3,})", line)
        if fence:
            if line.strip() == fence:
                yield "code", "\n".join(block)
                fence = ""
            else:
                block.append(line)
        elif mark and "`" not in line[mark.end() :]:
            fence, block = mark[1], []
        else:
            if heading := _HEADING.fullmatch(line):
                yield "headings", heading[1]
            elif row := _ROW.fullmatch(line.strip()):
                if not _RULE.fullmatch(line.strip()):
                    yield "rows", row[1]
            elif item := _ITEM.match(line):
                yield "items", item[1]
            for span in _SPAN.finditer(line):
                yield "code", span[2]
            for formula in _FORMULA.finditer(line):
                yield "formulas", formula[1]


if __name__ == "__main__":
    main()
