"""Subtitles: the text of their cues and nothing else, and files that are not subtitles."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable

import pytest

SRT = """\ufeff1
00:00:01,000 --> 00:00:02,500 X1:201 X2:516 Y1:397 Y2:423
<i>The mill</i> grinds
corn <font color="#fff">today</font>.

2
00:00:03,000 --> 00:00:04,000
{\\an8}- I <3 the mill,
- 3 of us do.

3
00:00:05,000 --> 00:01:06,250
(WATER RUNS)
42
"""
VTT = """WEBVTT - a title
Kind: captions
Language: en-GB

STYLE
::cue { color: red }

NOTE
a comment
of two lines

REGION
id:one

first cue
00:01.000 --> 00:02.000 align:start position:0%
<v.loud Mary Ann>Bread &amp; <c.yellow>corn</c>,
<00:01.500><b>every</b> day

NOTE one line

00:00:02.100 --> 00:01:03.000
for &lt;all&gt; of us.&nbsp;
"""
ROLLING = """WEBVTT

00:00.000 --> 00:01.000
hello

00:01.000 --> 00:01.010
hello

00:01.010 --> 00:02.000
hello
and<00:01.500> welcome

00:02.000 --> 00:02.010
and welcome

00:02.010 --> 00:03.000
and welcome
to the mill

00:09.000 --> 00:10.000
to the mill
"""


def timed(*texts: str, blank: str = "\n") -> str:
    cues = (f"{n}\n00:00:{n:02}.0 --> 00:00:{n:02}.5\n{text}\n" for n, text in enumerate(texts, 1))
    return blank.join(cues)


def test_srt_without_numbers_times_positions_and_tags(read: Callable) -> None:
    found = read("a.srt", SRT.encode(), format="subtitles")
    text = "The mill grinds corn today.\n- I <3 the mill,\n- 3 of us do.\n(WATER RUNS) 42"
    assert (found.texts, found.bad) == ([text], [])
    assert json.loads(found.metas[0]) == {"cues": 3, "seconds": 66.25}


def test_webvtt_without_comments_styles_names_and_tags(read: Callable) -> None:
    found = read("a.vtt", VTT.encode(), format="subtitles")
    assert (found.texts, found.bad) == (["Bread & corn, every day for <all> of us."], [])
    assert json.loads(found.metas[0]) == {"cues": 2, "seconds": 63.0, "language": "en-GB"}


def test_captions_that_roll_are_said_once(read: Callable) -> None:
    assert read("a.vtt", ROLLING.encode(), format="subtitles").texts == ["hello and welcome to the mill to the mill"]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("One", "two.", "Three"), "One two.\nThree"),
        (('"Yes."', "No"), '"Yes."\nNo'),
        (("No.", "No."), "No.\nNo."),
        (("", "<i></i>", "text"), "text"),
        (("a\n\nb",), "a b"),
        (("日本語。", "中文"), "日本語。\n中文"),
        (("1", "2"), "1 2"),
        (("<b unclosed", "a > b < c"), "<b unclosed a > b < c"),
    ],
)
@pytest.mark.parametrize("blank", ["\n", ""])
def test_cues_are_joined_to_sentences(read: Callable, texts: tuple[str, ...], expected: str, blank: str) -> None:
    data = timed(*texts, blank=blank)
    for end in ("\n", "\r\n", "\r"):
        assert read("a.srt", data.replace("\n", end).encode(), format="subtitles").texts == [expected]


def test_files_that_are_no_subtitles_or_cannot_be_read(read: Callable) -> None:
    def reasons(data: bytes, name: str = "a.srt", **fields: object) -> list[str]:
        found = read(name, data, format="subtitles", **fields)
        assert not found.texts
        return [bad[2] for bad in found.bad]

    whole = SRT.encode()
    assert reasons(b"") == ["empty"]
    assert reasons(b"WEBVTT\n\nNOTE nothing\n") == reasons(b"a --> b\ntext\n") == ["not_subtitles"]
    assert reasons(timed("", "").encode()) == ["empty"]
    assert reasons(SRT.encode("utf-16")) == ["undecodable"]
    assert reasons(timed("caf\xe9").encode("latin-1")) == ["undecodable"]
    assert (
        reasons(whole, max_document_bytes=50)
        == reasons(whole, max_document_bytes=50, oversized="split")
        == ["oversized"]
    )
    assert reasons(gzip.compress(whole)[:-20], "a.srt.gz") == ["truncated"]
    assert reasons(gzip.compress(b"\n" * (3 << 20)), "b.srt.gz", max_decoded_bytes=1 << 20) == ["decoded_limit"]
    assert read("c.srt", timed("caf\xe9").encode("latin-1"), format="subtitles", encoding="latin-1").texts == ["café"]


def test_members_of_archives_are_files(read: Callable) -> None:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w:gz") as archive:
        for name, data in (("../a.srt", SRT.encode()), ("b.zip", b"PK\x03\x04" + b"0" * 40), ("c.srt", b"none")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    found = read("all.tar.gz", sink.getvalue(), format="subtitles")
    assert len(found.texts) == 1
    assert [bad[2] for bad in found.bad] == ["nested_archive", "not_subtitles"]


def test_lines_that_take_a_backtracking_parser_minutes(read: Callable) -> None:
    for piece in ("<", "{\\", "00:00:00,000 --> ", "-", "<a <", "&"):
        data = timed(piece * 60_000 if "-->" not in piece else piece * 4000)
        for name, text in (("a.srt", data), ("a.vtt", f"WEBVTT\n\n{data}")):
            found = read(name, text.encode(), format="subtitles")
            assert len(found.texts) == 1 or [bad[2] for bad in found.bad] == ["empty"]
