"""Stack Exchange dumps: questions are joined with their answers, even if other posts come between them."""

import html
import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from lxml import html as lxml_html

from gristmill.errors import StorageError
from pipelines.planning.source_check import check_sample
from pipelines.reading.entries.listing import list_files
from pipelines.reading.formats.dumps import stack_exchange
from pipelines.reading.sources.source import Source


def row(**attributes: object) -> str:
    written = {name: html.escape(str(value)).replace("\n", "&#xA;") for name, value in attributes.items()}
    return "<row " + " ".join(f'{name}="{value}"' for name, value in written.items()) + " />\n"


def question(number: int, body: str = "<p>body</p>", **more: object) -> str:
    return row(Id=number, PostTypeId=1, Title=f"Title {number}", Body=body, **more)


def answer(number: int, parent: object, body: str = "<p>answer</p>", **more: object) -> str:
    return row(Id=number, PostTypeId=2, ParentId=parent, Body=body, **more)


def posts(*rows: str) -> bytes:
    return ('<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "".join(rows) + "</posts>\n").encode()


CODE = "<p>Why &amp; how?</p>\n<pre><code>if x &lt; 3:\n    y  = 1\n</code></pre>\n<ul><li>one</li></ul>"


def test_a_question_with_its_answers_is_a_document(read: Callable) -> None:
    data = posts(
        question(
            4, CODE, Score=-3, Tags="<c#><asp.net>", CreationDate="2008-07-31T21:42:52.667", AcceptedAnswerId=9,
            ViewCount=70, ContentLicense="CC BY-SA 4.0",
        ),
        question(5, Tags="|c#|naïve|"),
        answer(7, 4, "<p>Middling</p>", Score=2, CreationDate="2008-08-01T00:00:00.000"),
        answer(8, 4, "<p>Best liked</p>", Score=10),
        answer(9, 4, "<p>Accepted</p>", Score=1),
        answer(6, 4, "<p>Liked as much, earlier</p>", Score=10),
    )  # fmt: skip
    found = read("math.stackexchange.com-Posts.xml", data, format="stack_exchange")
    text = "Q: Title 4\n\nWhy & how?\n\nif x < 3:\n    y  = 1\n  • one\n\n"
    text += "A: Accepted\n\nA: Liked as much, earlier\n\nA: Best liked\n\nA: Middling"
    assert found.texts == [text, "Q: Title 5\n\nbody"]
    assert found.urls == [f"https://math.stackexchange.com/questions/{number}" for number in (4, 5)]
    first, second = map(json.loads, found.metas)
    answers = first.pop("answers")
    assert first == {
        "id": 4, "title": "Title 4", "tags": ["c#", "asp.net"], "score": -3, "created": "2008-07-31T21:42:52.667", "views": 70,
        "licence": "CC BY-SA 4.0", "answer_count": 4, "top_answer_score": 10, "accepted_answer": 9,
    }  # fmt: skip
    assert [each["id"] for each in answers] == [9, 6, 8, 7]
    assert answers[3] == {"id": 7, "score": 2, "created": "2008-08-01T00:00:00.000"}
    assert (second["tags"], second["answer_count"], second["top_answer_score"]) == (["c#", "naïve"], 0, None)


def test_the_words_are_those_that_lxml_finds(read: Callable) -> None:
    rng = random.Random(1)
    words = [
        "alpha",
        "beta &lt;",
        "γάμμα",
        "<code>x = 1</code>",
        "<b>bold</b>",
        "<a href='http://x.y'>link</a>",
        "<br>",
    ]
    bodies = ["".join(f"<p>{' '.join(rng.choices(words, k=9))}</p>" for _ in range(4)) for _ in range(20)]
    found = read("Posts.xml", posts(*(question(i, body) for i, body in enumerate(bodies))), format="stack_exchange")
    for number, (text, body) in enumerate(zip(found.texts, bodies, strict=True)):
        expected = " ".join(
            lxml_html.fromstring(f"<div>{re.sub('<p>|<br>', ' <p>', body)}</div>").text_content().split()
        )
        assert " ".join(text.split()) == f"Q: Title {number} {expected}"


def test_every_post_is_accounted_for(read: Callable) -> None:
    data = posts(
        question(1), row(Id=2, PostTypeId=5, Body="wiki of a tag"), answer(3, 99), answer(4, "x"), row(Id="five", PostTypeId=1),
        answer(6, 1), question(1, "again"), row(Id=7, PostTypeId=2, Body="no parent"), "<other/>", row(Id=8, PostTypeId=1),
    )  # fmt: skip
    found = read("Posts.xml", data, format="stack_exchange")
    assert found.texts == ["Q: Title 1\n\nbody\n\nA: answer", "Q: "]
    reasons = ["bad_post", "bad_post", "bad_post", "bad_post", "not_question", "no_question"]
    assert [bad[2] for bad in found.bad] == reasons


@pytest.mark.long
def test_runs_on_disk_give_what_memory_gives(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    rows = [question(i, f"<p>question {i}</p>", Score=i % 7) for i in range(1, 400)]
    rows += [answer(i, rng.randrange(1, 440), f"<p>answer {i}</p>", Score=rng.randrange(9)) for i in range(400, 2000)]
    rng.shuffle(rows)
    whole = read("Posts.xml", posts(*rows), format="stack_exchange")
    monkeypatch.setattr(stack_exchange, "_HELD_BYTES", 5000)
    monkeypatch.setattr(stack_exchange, "_READ_BYTES", 100)
    monkeypatch.setattr("pipelines.reading.formats.dumps.xml_stream.CHUNK_BYTES", 999)
    assert read("Posts.xml", posts(*rows), format="stack_exchange") == whole
    assert len(whole.texts) == 399
    assert sum(text.count("A: answer") for text in whole.texts) + len(whole.bad) == 1600
    assert {bad[2] for bad in whole.bad} == {"no_question"}


def test_a_long_question_is_not_held(read: Callable) -> None:
    data = posts(question(1), question(2), *(answer(i, 1, "<p>" + "x" * 400 + "</p>") for i in range(3, 60)))
    found = read("Posts.xml", data, format="stack_exchange", max_html_bytes=8000)
    assert (found.texts, found.bad[0][1:3]) == (["Q: Title 2\n\nbody"], (0, "html_bytes"))
    deep = posts(question(1, "<b>" * 80 + "x"), question(2), answer(3, 2, "<i>" * 80 + "y"))
    found = read("Posts.xml", deep, format="stack_exchange", max_html_depth=50)
    assert [bad[2] for bad in found.bad] == ["html_depth"] * 2


def test_no_room_for_the_temporary_file(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def spill(self: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stack_exchange._SortedRows, "spill", spill)
    with pytest.raises(StorageError, match=r"Posts\.xml: its posts cannot be sorted in .*No space left.*TMPDIR"):
        read("Posts.xml", posts(question(1)), format="stack_exchange")


@pytest.mark.long
@pytest.mark.parametrize(
    ("data", "texts", "reason"),
    [
        (b"", 0, "truncated"),
        (b"<users><row /></users>", 0, "not_stack_exchange"),
        (b"PostTypeId,Body\n1,x", 0, "not_stack_exchange"),
        (posts(question(1), question(2))[:-30], 1, "truncated"),
        (posts(question(1), "</oops>", question(2)), 1, "corrupt"),
        (posts(question(1, "a")).replace(b'"a"', b'"&undefined;"'), 0, "corrupt"),
        (b'<!DOCTYPE p [<!ENTITY a "x">]>' + posts(question(1)), 0, "xml_doctype"),
        (b'<!DOCTYPE p SYSTEM "file:///etc/passwd">' + posts(question(1)), 0, "xml_doctype"),
        (b"<posts><row Body='" + b"x" * (17 << 20), 0, "corrupt"),
    ],
    ids=range(9),
)
def test_broken_dumps(read: Callable, data: bytes, texts: int, reason: str) -> None:
    found = read("Posts.xml", data, format="stack_exchange")
    assert (len(found.texts), [bad[2] for bad in found.bad]) == (texts, [reason])


def test_a_plan_looks_at_the_head_of_a_dump_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.planning.source_check._BYTES", 1 << 19)
    (tmp_path / "Posts.xml").write_bytes(posts(*(question(i, "<p>" + "x" * 5000) for i in range(900))))
    source = Source(name="s", root=str(tmp_path), format="stack_exchange")
    tally = check_sample(source, list_files(source))
    assert 0 < tally.documents < 110
    assert not tally.aside
