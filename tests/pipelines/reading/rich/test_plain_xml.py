"""XML read with a regular expression for tags, against the same XML read with expat's callbacks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.rich.plain_xml import NotPlain, read_plain
from pipelines.reading.rich.zip_package import read_elements

HEAD = '<w:a xmlns:w="urn:w" xmlns:m="urn:m" xmlns="urn:d" a="1">'
NAMES = ("p", "t", "tab", "level", "tabs", "r")
texts = st.text(st.sampled_from("aé 中\n\t>]'\"=/;t"), max_size=6).map(lambda text: text.replace("]]>", ""))
references = st.sampled_from(
    ["&amp;", "&lt;p&gt;", "&#233;", "&#x1F600;", "&quot;&apos;", "&amp;lt;", "&#10;", "&#13;"]
)
contents = st.lists(texts | references, max_size=3).map("".join)
values = contents.map(lambda text: text.replace('"', "'"))
attributes = st.lists(
    st.tuples(st.sampled_from([" ", "\n ", "  "]), st.sampled_from(["val", "w:val2", "m:x", "xmlns:q"]), values),
    max_size=3,
    unique_by=lambda each: each[1],
).map(lambda found: "".join(f'{space}{name} = "{value or "u"}"' for space, name, value in found))


@st.composite
def elements(draw, deep=3):
    name = draw(st.sampled_from(["", "w:", "m:"])) + draw(st.sampled_from(NAMES))
    tag = name + draw(attributes)
    if draw(st.booleans()) and draw(st.booleans()):
        return f"<{tag}/>"
    inner = draw(contents)
    if deep and not name.endswith("t"):
        inner += "".join(f"{each}{draw(contents)}" for each in draw(st.lists(elements(deep - 1), max_size=3)))
    return f"<{tag}>{inner}</{name}>"


def calls(read, data):
    found = []
    starts = {name: lambda attributes, name=name: found.append((name, attributes)) for name in ("p", "tab", "level")}
    ends = {name: lambda name=name: found.append(name) for name in ("p", "r")}

    def text(piece):
        if found and isinstance(found[-1], list):
            found[-1].append(piece)
        else:
            found.append([piece])

    read(data, starts, ends, {"t": text}, frozenset(("tabs",)))
    return [("text", "".join(each)) if isinstance(each, list) else each for each in found]


@pytest.mark.long
@settings(max_examples=50)
@given(st.lists(elements(), max_size=4), st.sampled_from(["", '<?xml version="1.0" encoding="UTF-8"?>\n']))
def test_the_calls_are_those_of_a_parser(pieces, declaration):
    data = f"{declaration}{HEAD}{''.join(pieces)}</w:a>".encode()
    assert calls(read_plain, data) == calls(read_elements, data)


def test_line_ends_are_those_of_xml():
    data = f"{HEAD}<w:t>a\r\nb\rc&#13;</w:t><w:p val='x\r\ny\t'/></w:a>".encode()
    assert calls(read_plain, data) == calls(read_elements, data)
    assert calls(read_plain, data)[0] == ("text", "a\nb\nc\r")


@pytest.mark.parametrize(
    "data",
    [
        f"{HEAD}<!-- <w:p> --><w:t>x</w:t></w:a>".encode(),
        f"{HEAD}<w:t><![CDATA[<w:p>]]></w:t></w:a>".encode(),
        f"{HEAD}<?go <w:p>?><w:t>x</w:t></w:a>".encode(),
        f"{HEAD}<w:t>a<m:b/>b</w:t></w:a>".encode(),
        f"{HEAD}<w:t>x</w:t></w:a>".encode("utf-16"),
        b'<?xml version="1.0" encoding="latin-1"?><w:a xmlns:w="w"><w:t>\xe9</w:t></w:a>',
        b'\xef\xbb\xbf<?xml version="1.0"?><a><t>x</t></a>',
    ],
)
def test_what_is_not_plain_is_left_to_the_parser(data):
    with pytest.raises(NotPlain):
        calls(read_plain, data)
    assert calls(read_elements, data)


def test_a_text_is_without_the_elements_that_are_left_out():
    assert calls(read_elements, b"<a><t>x<tabs>y</tabs>z</t></a>") == [("text", "xz")]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<a><t>x</a>", "corrupt"),
        (b"<w:a/>", "corrupt"),
        (b"<a>&undefined;</a>", "corrupt"),
        (b"<a b=1/>", "corrupt"),
        (b"<a><t>\xff</t></a>", "corrupt"),
        (b"<!DOCTYPE a><a/>", "xml_doctype"),
        ('<!DOCTYPE a [<!ENTITY e "x">]><a><t>&e;</t></a>'.encode("utf-16"), "xml_doctype"),
    ],
)
def test_broken_xml_is_refused_by_both(data, reason):
    for read in (read_plain, read_elements):
        with pytest.raises(BrokenInput) as refused:
            calls(read, data)
        assert refused.value.reason == reason
