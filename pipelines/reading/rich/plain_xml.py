"""Read large XML in which few elements matter, in a fraction of the time that an XML parser with callbacks
takes.

expat checks that the XML is well-formed and has no document type. In well-formed XML, `<` only begins a tag,
a comment, a CDATA section or a processing instruction. If there are only tags, a regular expression finds
every one; otherwise `read_plain` raises NotPlain.
"""

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

from pipelines.reading.rich.zip_package import Attributes, check_xml

_DECLARATION = re.compile(rb"<\?xml\s[^>]*?\bencoding\s*=\s*[\"']([\w.:-]+)")
_ATTRIBUTES = r"[^<>\"']*+(?:(?:\"[^\"]*+\"|'[^']*+')[^<>\"']*+)*+"
_ATTRIBUTE = re.compile(r"(?:([^\s=:\"'/]+):)?([^\s=:\"'/]+)\s*=\s*(?:\"([^\"]*)\"|'([^']*)')")
_REFERENCE = re.compile(r"&(?:#x([0-9a-fA-F]+)|#([0-9]+)|(lt|gt|amp|quot|apos));")
_CHARACTERS = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}


class NotPlain(Exception):
    """Raised by `read_plain` for XML that it cannot read. The caller must undo the effects of the functions
    called so far, and use a full parser.
    """


def read_plain(
    data: bytes,
    starts: Mapping[str, Callable[[Attributes], None]],
    ends: Mapping[str, Callable[[], None]],
    texts: Mapping[str, Callable[[str], None]],
    left_out: Collection[str],
) -> None:
    """Read XML as `zip_package.read_elements` does, with the same arguments, but without a full parser.
    Raises BrokenInput for XML that `read_elements` rejects.

    Raises NotPlain for encodings other than UTF-8, comments, CDATA sections, processing instructions, and an
    element nested in one of `texts`. Some of the functions may have been called by then.
    """
    check_xml(data)
    skipped, depth = "", 0  # the element that is left out, and how many of its name are open
    tags = _tags(frozenset((*starts, *ends)), frozenset(texts), frozenset(left_out))
    for match in tags.finditer(_decoded(data)):
        name, content, is_end, element, attributes = match.groups()
        if depth:
            if element == skipped and attributes[-1:] != "/":
                depth += -1 if is_end else 1
        elif name is not None:  # one of `texts`, with its text
            if content:
                texts[name](_unescaped(content) if "&" in content else content)
        elif is_end:
            if (handle := ends.get(element)) is not None:
                handle()
        elif (start := starts.get(element)) is not None and not attributes:
            start({})
        else:
            is_empty = attributes[-1:] == "/"
            if start is not None:
                start(_parsed(attributes))
            if element in left_out and not is_empty:
                skipped, depth = element, 1
            elif element in texts and not is_empty:
                raise NotPlain
            elif is_empty and element in ends:
                ends[element]()


def _decoded(data: bytes) -> str:
    declared = _DECLARATION.match(data)
    if b"<!" in data or data.find(b"<?", 1) > 0 or (declared and declared[1].lower() != b"utf-8"):
        raise NotPlain
    try:
        text = data.decode()
    except UnicodeDecodeError:  # UTF-16
        raise NotPlain from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


@lru_cache(maxsize=8)
def _tags(names: frozenset[str], texts: frozenset[str], left_out: frozenset[str]) -> re.Pattern[str]:
    """Return a regular expression that matches the start and end tags of the elements in any of the three
    sets. For an element of `texts` that contains only text, one match covers the start tag, the text and
    `</`.
    """
    prefix = r"(?:[^\s<>/:=\"']++:)?+"
    whole = rf"{prefix}({'|'.join(sorted(texts))})(?=[\s>]){_ATTRIBUTES}(?<!/)>([^<]*+)</"
    tag = rf"(/?+){prefix}({'|'.join(sorted(names | texts | left_out))})(?=[\s/>])({_ATTRIBUTES})>"
    return re.compile(f"<(?:{whole}|{tag})")


def _parsed(attributes: str) -> Attributes:
    found = {}
    for prefix, name, double, single in _ATTRIBUTE.findall(attributes):
        if prefix != "xmlns" and (prefix or name != "xmlns"):
            value = double or single
            found[name] = _unescaped(value.translate({9: " ", 10: " "}))
    return found


def _unescaped(text: str) -> str:
    return _REFERENCE.sub(_character, text)


def _character(reference: re.Match[str]) -> str:
    if reference[3]:
        return _CHARACTERS[reference[3]]
    return chr(int(reference[1], 16) if reference[1] else int(reference[2]))
