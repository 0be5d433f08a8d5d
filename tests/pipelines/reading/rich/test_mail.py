"""Mail: messages of mbox files and single files, decoded, without the text that they quote."""

import json
import random
from collections.abc import Callable
from email.message import EmailMessage

import pytest

from pipelines.reading.entries.reasons import REASONS
from pipelines.reading.rich import mbox
from pipelines.reading.rich.mail_text import mail_text
from pipelines.reading.web.extraction import PageLimits

HEAD = b"From eva@example.org Wed Mar  4 05:06:07 2015\n"
LIMITS = PageLimits("", "", 1 << 20, 1000, 100, 1 << 20, 1 << 20, 60, 1 << 30)


def message(text: str, **headers: str) -> bytes:
    made = EmailMessage()
    for name, value in headers.items():
        made[name.replace("_", "-")] = value
    made.set_content(text, charset="utf-8", cte="quoted-printable")
    return made.as_bytes()


def test_messages_of_an_mbox(read: Callable) -> None:
    first = message(
        "Der Müller\nmahlt.\n", From="Eva Müller <eva@example.org>", Subject="Größe", Date="Wed, 4 Mar 2015 06:06:07 +0100",
        Message_ID="<1@example.org>", List_Id="mills <mills.example.org>",
    )  # fmt: skip
    second = b"Subject: =?iso-8859-1?q?Gr=F6=DFe?= =?utf-8?b?w6Q=?=\nIn-Reply-To: <1@example.org>\n\n"
    second += b">From here on\nFrom there\nFrom 2015\n"
    found = read("a.mbox", HEAD + first + b"\n" + HEAD + second, format="mbox")
    assert found.texts == ["Der Müller\nmahlt.", "From here on\nFrom there\nFrom 2015"]
    assert list(map(json.loads, found.metas)) == [
        {
            "from": "Eva Müller <eva@example.org>", "subject": "Größe", "date": "2015-03-04T05:06:07",
            "message_id": "<1@example.org>", "list": "mills <mills.example.org>",
        },
        {"subject": "Größeä", "in_reply_to": "<1@example.org>"},
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 7, 100])
def test_the_division_into_messages_does_not_depend_on_chunks(
    read: Callable, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    data = b"\n".join(HEAD + message(f"Text {number}\n\nFrom now on", Subject="x") for number in range(9))
    whole = read("a.mbox", data, format="mbox")
    monkeypatch.setattr("pipelines.reading.entries.files.CHUNK_BYTES", size)
    assert read("a.mbox", data, format="mbox") == whole
    assert whole.texts == [f"Text {number}\n\nFrom now on" for number in range(9)]


def test_an_mbox_without_end_is_not_held(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mbox, "_LINE_BYTES", 64)
    long = HEAD + b"Subject: x\n\n" + b"word\n" * 20_000
    data = HEAD + b"Subject: a\n\none\n\n" + long + b"\n" + HEAD + b"Subject: b\n\ntwo\n"
    found = read("a.mbox", data, format="mbox", max_file_bytes=1000)
    assert (found.texts, [bad[1:3] for bad in found.bad]) == (["one", "two"], [(1, "file_bytes")])
    assert found.bad[0][3] == len(long) - len(HEAD)


@pytest.mark.parametrize(("data", "reason"), [(b"", "empty"), (b"no mail", "not_mbox"), (b"x" * 5000, "not_mbox")])
def test_what_is_no_mbox(read: Callable, data: bytes, reason: str) -> None:
    assert [bad[2] for bad in read("a.mbox", data, format="mbox").bad] == [reason]


ORIGINAL = "Yes.\n\n----- Original Message -----\nFrom: Bob\n\nReally?"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("One.\n\n-- \nEva\nMill Lane 1", "One."),
        ("One -- two\n--\nEva", "One -- two"),
        ("On 4 March 2015, Bob wrote:\n> Really?\n> > Who?\n\nYes.\n\n> And?\n\nNo.", "Yes.\n\nNo."),
        ("Am Mi., 4. März 2015 um 05:06 Uhr schrieb Bob\n<bob@example.org>:\n\n> Wirklich?\n\nJa.", "Ja."),
        ("I say this:\n> quoted\nEnd.", "I say this:\n\nEnd."),
        ("a > b\n >c\nd", "a > b\n\nd"),
        (ORIGINAL, "Yes."),
        ("--- not a signature\ntext", "--- not a signature\ntext"),
    ],
)
def test_quotes_and_signatures_go(text: str, own: str) -> None:
    assert mail_text(message(text, Subject="x"), "", LIMITS)[1] == own


def test_the_plain_part_is_preferred_and_attachments_are_left_out() -> None:
    made = EmailMessage()
    made["Subject"] = "x"
    made.set_content("plain")
    made.add_alternative("<p>html</p>", subtype="html")
    made.add_attachment("attached text", filename="a.txt")
    made.add_attachment(made.__class__(), filename="inner.eml")
    assert mail_text(made.as_bytes(), "", LIMITS)[1] == "plain"
    only = EmailMessage()
    only["Subject"] = "x"
    only.set_content("<p>One &amp; <b>two</b></p><script>no</script><p>three", subtype="html")
    assert mail_text(only.as_bytes(), "", LIMITS) == ({"meta": {"subject": "x"}}, "One & two\n\nthree")


def test_encodings_and_flowed_lines() -> None:
    head = b"Subject: x\nContent-Type: text/plain; charset=%s\nContent-Transfer-Encoding: %s\n\n"
    assert mail_text(head % (b"iso-8859-1", b"8bit") + b"Gr\xf6\xdfe", "", LIMITS)[1] == "Größe"
    assert mail_text(head % (b"utf-8", b"base64") + b"R3LDtsOfZQ==", "", LIMITS)[1] == "Größe"
    assert mail_text(head % (b"nonsense", b"nonsense") + "Größe".encode(), "", LIMITS)[1] == "Größe"
    flowed = b"Subject: x\nContent-Type: text/plain; format=flowed\n\nOne \nparagraph \nhere.\n From two.\n-- \nEva"
    extended = b"Subject: x\nContent-Type: text/plain; charset*=utf-8''utf-8\n\n"
    assert mail_text(extended + "Größe".encode(), "", LIMITS)[1] == "Größe"
    assert mail_text(flowed, "", LIMITS)[1] == "One paragraph here.\nFrom two."
    delsp = b"Subject: x\nContent-Type: text/plain; format=flowed; delsp=yes\n\nwo \nrd"
    assert mail_text(delsp, "", LIMITS)[1] == "word"


@pytest.mark.long
def test_hostile_messages() -> None:
    assert mail_text(b"no header at all", "", LIMITS)[0] == {"reason": "bad_message"}
    nested = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(3000))
    head, text = mail_text(b"Subject: x\n" + nested, "", LIMITS)
    assert (head.get("reason"), text) == ("bad_message", "") or "meta" in head
    assert mail_text(b"Subject: x\n\n" + b"word " * 300_000, "", LIMITS)[0] == {"reason": "oversized"}
    for parameters in (b"text/plain; charset*0*=x; charset*=y", b"multipart/mixed; boundary*0*=x; boundary*=y"):
        unsorted = b"Subject: x\nContent-Type: " + parameters + b"\n\ntext"
        assert mail_text(unsorted, "", LIMITS)[0] == {"reason": "bad_message"}
    strange = b"Subject: =?x?q?a?=\nDate: never\nFrom: \xff\xfe\nContent-Type: text/plain; charset*0=x\n\ntext"
    assert mail_text(strange, "", LIMITS)[1] == "text"


def test_any_damage_gives_a_text_or_a_reason() -> None:
    rng = random.Random(9)
    made = EmailMessage()
    made["Subject"] = "Größe der Mühle"
    made["Date"] = "Wed, 4 Mar 2015 06:06:07 +0100"
    made.set_content("Text der Mühle\n> quoted\n-- \nEva\n")
    made.add_alternative("<p>html</p>", subtype="html")
    whole = made.as_bytes()
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        head, text = mail_text(bytes(data), "", LIMITS)
        assert "meta" in head or (head["reason"] in REASONS and not text)
