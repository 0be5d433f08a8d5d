import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.reading.entries.normalise import cut, normalise, normalise_all, normalise_tweet

HEBREW_AND_ARABIC = "\u0634\u0644\u0648\u0645 \u05e9\u05dc\u05d5\u05dd \u202bx\u202c"
EMOJI = "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea"
TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from("\r\n\t\v\f\0\x1b\x7f\x80\x85\x9f\xa0\u2028\u2029e\u0301\u0300o\u1100\u1161\u212b\u2000"),
    )
)


WINDOWS_1252 = "€\0‚ƒ„…†‡ˆ‰Š‹Œ\0Ž\0\0‘’“”•–—˜™š›œ\0žŸ"


def reference(text: str, unicode_form: str) -> tuple[bytes, int]:
    """Normalise a text by definition, without regard to speed; return the bytes and the number of control
    characters.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u2028", "\n").replace("\u2029", "\n")
    controls = sum(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in text)
    text = text.replace("\v", "\n").replace("\f", "\n")
    c1 = {c for c in text if "\x80" <= c <= "\x9f"}
    if c1 == {"\x85"} and "\n" not in text:
        text = text.replace("\x85", "\n")
    text = "".join(WINDOWS_1252[ord(c) - 0x80] if "\x80" <= c <= "\x9f" else c for c in text)
    kept = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")
    return (unicodedata.normalize("NFC", kept) if unicode_form == "NFC" else kept).encode(), controls


@given(TEXTS, st.sampled_from(["NFC", "none"]))
def test_equals_the_definition(text: str, unicode_form: str) -> None:
    assert normalise(text, unicode_form) == reference(text, unicode_form)


@given(TEXTS)
def test_is_idempotent(text: str) -> None:
    once, _ = normalise(text)
    assert normalise(once.decode()) == (once, 0)


@given(st.lists(TEXTS, min_size=1), st.sampled_from(["NFC", "none"]))
def test_many_at_once_equal_one_by_one(texts: list[str], unicode_form: str) -> None:
    single = [normalise(text, unicode_form) for text in texts]
    found = normalise_all(texts, unicode_form)
    assert bytes(found.data) == b"".join(data for data, _ in single)
    assert found.lengths == [len(data) for data, _ in single]
    assert found.controls == sum(controls for _, controls in single)


@pytest.mark.parametrize(
    ("text", "expected", "controls"),
    [
        ("plain\ttext\n", "plain\ttext\n", 0),
        ("a\r\nb\rc\r\r\n", "a\nb\nc\n\n", 0),
        ("nul\0 esc\x1b[31m bell\a", "nul esc[31m bell", 3),
        ("cafe\u0301", "caf\u00e9", 0),
        ("e\x00\u0301", "\u00e9", 1),  # what is removed first no longer stands between base and accent
        (HEBREW_AND_ARABIC, HEBREW_AND_ARABIC, 0),
        (EMOJI, EMOJI, 0),
        ("page one\fStart\vend", "page one\nStart\nend", 2),
        ("don\x92t say \x93hi\x94", "don’t say “hi”", 3),  # bytes of Windows-1252, declared as Latin-1
        ("wait\x85\nwhat", "wait…\nwhat", 1),
        ("wait\x85 it\x92s", "wait… it’s", 2),
        ("next\x85line\x85", "next\nline\n", 2),  # no other line break: the line end of a mainframe
        ("verse\u2028verse\u2029stanza", "verse\nverse\nstanza", 0),
        ("no \x81character", "no character", 1),
    ],
)
def test_examples(text: str, expected: str, controls: int) -> None:
    assert normalise(text) == (expected.encode(), controls)


@pytest.mark.parametrize("text", ["a\ud800", "\udfff", "ok \udc80 ok"])
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(UnicodeEncodeError):
        normalise(text)
    with pytest.raises(UnicodeEncodeError):
        normalise_all(["fine", text])


@given(TEXTS, st.integers(1, 12))
def test_cut_keeps_every_byte_and_the_limit(text: str, limit: int) -> None:
    data = text.encode()
    pieces = cut(data, limit)
    assert b"".join(pieces) == data
    for piece in pieces:
        assert piece.decode()
        assert len(piece) <= limit or len(piece.decode()) == 1


def test_cut_prefers_line_ends() -> None:
    assert cut(b"one\ntwo\nthree", 9) == [b"one\ntwo\n", b"three"]
    assert cut(b"abcdef", 4) == [b"abcd", b"ef"]
    assert cut("aé".encode(), 2) == [b"a", "é".encode()]


NAMES_AND_URLS = ["@bob", "@a_1", "me@ex.org", "josé@ex.org", "http://t.co/aB1", "HTTPS://x.y/?q=@bob", "www.x.org/a"]
PIECES = st.sampled_from([*NAMES_AND_URLS, "@USER", "HTTPURL", *"@.,)(…/ſ", "http://", "www", "word", "日本"])
TWEETS = st.lists(st.tuples(PIECES, st.sampled_from([" ", "", "\n"])).map("".join)).map("".join)


def plain_tweet(text: str) -> tuple[str, int, int]:
    """Replace user names and URLs by definition, one character at a time within each word; return the text
    and the numbers of user names and URLs replaced.
    """
    words, names, urls = [], 0, 0
    for word in re.split(r"(\s+)", text):
        out, at = "", 0
        while at < len(word):
            before, rest = word[at - 1 : at] if at else "", word[at:]
            begin = next((p for p in ("http://", "https://", "www.") if rest[: len(p)].lower() == p), None)
            inside = before.isalnum() or before == "_"
            trimmed = rest.rstrip(".,;:!?'\")]}>…»”’")
            if begin and not inside and len(trimmed) > len(begin):
                out, at, urls = out + "HTTPURL", at + len(trimmed), urls + 1
                continue
            name = re.match(r"@[a-zA-Z0-9_]+", rest)
            if name and not inside and before not in ("@", "/") and rest[name.end() : name.end() + 1] != "@":
                out, at, names = out + "@USER", at + name.end(), names + (name[0] != "@USER")
                continue
            out, at = out + word[at], at + 1
        words.append(out)
    return "".join(words), names, urls


@given(TWEETS)
def test_tweets_equal_the_definition(text: str) -> None:
    data, counts = normalise_tweet(text.encode())
    assert (data.decode(), counts["user_names"], counts["urls"]) == plain_tweet(text)


@given(TWEETS)
def test_tweets_are_normalised_once(text: str) -> None:
    once, _ = normalise_tweet(text.encode())
    assert normalise_tweet(once) == (once, {"user_names": 0, "urls": 0})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RT @bob_1: see https://t.co/aB1.", "RT @USER: see HTTPURL."),
        (".@NASA and (@esa) (http://esa.int/a_(b))", ".@USER and (@USER) (HTTPURL))"),
        ("write to bob@example.org or josé@example.org", "write to bob@example.org or josé@example.org"),
        ("WWW.EXAMPLE.ORG/a,b? example.org", "HTTPURL? example.org"),
        ("http://a.b/@bob medium.com/@bob", "HTTPURL medium.com/@bob"),
        ("cut off http://t.co/ab…", "cut off HTTPURL…"),
        ("@ home, @@bob, www. http://", "@ home, @@bob, www. http://"),
    ],
)
def test_tweets(text: str, expected: str) -> None:
    assert normalise_tweet(text.encode())[0].decode() == expected
