import pytest

from pipelines.reading.web.charset import codec_of_label, decode_page, is_undecodable
from pipelines.reading.web.http_payload import charset_of

CHINESE = "<p>这是一个关于磨坊的页面,它在河边。</p>"
JAPANESE = "<p>水車小屋は川のそばにあります。</p>"
RUSSIAN = "<p>Мельница стоит у реки, и вода в ней тихая.</p>"


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("UTF-8", "utf-8"), (" utf8 ", "utf-8"), ("latin1", "cp1252"), ("iso-8859-1", "cp1252"), ("us-ascii", "cp1252"),
        ("iso-8859-9", "cp1254"), ("tis-620", "cp874"), ("gb2312", "gb18030"), ("GBK", "gb18030"), ("big5", "big5hkscs"),
        ("x-sjis", "cp932"), ("ks_c_5601-1987", "cp949"), ("x-mac-cyrillic", "mac_cyrillic"), ("koi8-r", "koi8-r"),
        ("utf-16", "utf-16-le"), ("hz-gb-2312", None), ("utf-7", None), ("rot13", None), ("nonsense", None), ("", None),
    ],
)  # fmt: skip
def test_labels_mean_what_the_standard_says(label: str, codec: str | None) -> None:
    assert codec_of_label(label) == codec
    assert codec is None or isinstance("".encode(codec), bytes)


@pytest.mark.parametrize(
    ("data", "http", "charset", "text"),
    [
        (RUSSIAN.encode("cp1251"), "windows-1251", "cp1251", RUSSIAN),
        (RUSSIAN.encode("koi8-r"), "koi8-r", "koi8-r", RUSSIAN),
        (b"<meta charset=koi8-r>" + RUSSIAN.encode("cp1251"), "windows-1251", "cp1251", RUSSIAN),  # HTTP before meta
        (
            b"<META HTTP-EQUIV=x content='text/html; charset=euc-jp'>" + JAPANESE.encode("euc-jp"),
            "",
            "euc_jp",
            JAPANESE,
        ),
        (b'<?xml version="1.0" encoding="Shift_JIS"?>' + JAPANESE.encode("cp932"), "", "cp932", JAPANESE),
        (b"<meta charset=utf-16>" + RUSSIAN.encode(), "", "utf-8", RUSSIAN),
        (JAPANESE.encode("iso2022_jp"), "iso-2022-jp", "iso2022_jp", JAPANESE),
        (JAPANESE.encode("utf-16-le"), "utf-16", "utf-16-le", JAPANESE),
        (b"\xff\xfe" + JAPANESE.encode("utf-16-le"), "euc-jp", "utf-16-le", JAPANESE),
        (b"\xef\xbb\xbf" + JAPANESE.encode(), "euc-jp", "utf-8", JAPANESE),
        (CHINESE.encode() * 3, "gb2312", "utf-8", CHINESE * 3),  # declared gb2312, and UTF-8
        (CHINESE.encode("gbk") * 3, "utf-8", "gb18030", CHINESE * 3),  # declared UTF-8, and not
        (b"caf\xc3\xa9", "iso-8859-1", "cp1252", "cafÃ©"),  # too little to overrule what is declared
        (b"plain", "euc-jp", "utf-8", "plain"),
        ("“Smart quotes” — a naïve café’s menu".encode("cp1252"), "", "cp1252", "“Smart quotes” — a naïve café’s menu"),
        (b"", "utf-8", "utf-8", ""),
    ],
)
def test_the_order_of_declarations_and_their_overrides(data: bytes, http: str, charset: str, text: str) -> None:
    found = decode_page(data, http)
    assert (found.charset, found.replaced) == (charset, 0)
    assert found.text.endswith(text)


KOREAN = "<p>물레방아는 강가에 있고, 물은 천천히 흐른다. 방앗간 주인은 “밀가루”를 나눈다.</p>"
UKRAINIAN = "<p>Млин стоїть біля річки, і вода в ній тиха. Її чути здалеку, є в ній сила.</p>"


@pytest.mark.parametrize("label", ["", "utf-8"])
@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (KOREAN, "euc_kr"), (KOREAN, "cp949"), (CHINESE, "gbk"), ("<p>水車在河邊，水聲很輕，麵粉裝在袋裡。</p>", "big5"),
        (JAPANESE, "cp932"), (JAPANESE, "euc_jp"), (RUSSIAN, "cp1251"), (RUSSIAN, "koi8-r"), (UKRAINIAN, "koi8-u"),
        ("<p>Der Müller mahlt.</p>", "cp1252"), ("<p>Où est l'élan ?</p>", "cp1252"),
    ],
)  # fmt: skip
def test_what_is_not_declared_or_declared_utf_8_is_detected(text: str, encoding: str, label: str) -> None:
    found = decode_page(text.encode(encoding), label)
    assert (found.text, found.replaced) == (text, 0)


@pytest.mark.parametrize(("text", "encoding"), [(KOREAN, "cp949"), (RUSSIAN, "cp1251"), (CHINESE, "gbk")])
def test_latin_1_is_not_believed_for_runs_of_letters_beyond_ascii(text: str, encoding: str) -> None:
    assert decode_page(text.encode(encoding) * 3, "iso-8859-1").text == text * 3
    assert decode_page(b"<meta charset=iso-8859-1>" + text.encode(encoding) * 3).text.endswith(text)
    accents = "<p>à á â é, où naïf; ações, não, coração</p>" * 20
    assert decode_page(accents.encode("cp1252"), "iso-8859-1").text == accents


def test_a_short_page_without_a_declaration_that_is_utf_8_is_utf_8() -> None:
    assert decode_page("<p>Der Müller</p>".encode()).text == "<p>Der Müller</p>"


def test_a_text_with_a_tenth_replaced_is_undecodable() -> None:
    found = decode_page(RUSSIAN.encode("mac_cyrillic") * 5)
    assert found.replaced
    assert is_undecodable(found.text)
    assert not is_undecodable("a long English text, with one \ufffd")
    assert not is_undecodable("nine of ten \ufffd")
    assert not is_undecodable("")


def test_bytes_without_a_meaning_are_replaced_and_counted() -> None:
    found = decode_page(RUSSIAN.encode() + b"\xff \xe2\x82" + "\ufffd".encode() + RUSSIAN.encode(), "utf-8")
    assert found.text == RUSSIAN + "\ufffd \ufffd\ufffd" + RUSSIAN
    assert found.replaced == 2
    japanese = decode_page(JAPANESE.encode("euc-jp") * 5 + b"\xff", "euc-jp")
    assert (japanese.charset, japanese.replaced) == ("euc_jp", 1)


@pytest.mark.timeout(120)
def test_a_declaration_of_blanks_takes_no_quadratic_time() -> None:
    assert charset_of("text/html; charset=" + " " * 60_000 + ";") == ""
    for data in (b"<meta " * 400 + b"charset=" + b" " * 1600 + b";", b"<meta charset=" * 200 + b" " * 1200 + b";"):
        assert decode_page(data).charset == "utf-8"


def test_noise_decodes_somehow() -> None:
    noise = bytes(range(256)) * 50
    for label in ("utf-8", "gb2312", "euc-kr", "big5", "iso-2022-jp", "utf-16", ""):
        found = decode_page(noise, label)
        assert found == decode_page(noise, label)
        assert found.text


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("declared", ["", "windows-1252", "utf-8"])
@pytest.mark.parametrize("text", ["Ein Müller – naïve", "Привет, мир, как дела?", "磨坊在河邊，他們有麵包。", "plain"])
def test_utf_16_without_a_byte_order_mark(encoding, declared, text):
    page = f"\r\n <!DOCTYPE html><html><body><p>{text}</p></body></html>"
    assert decode_page(page.encode(encoding), declared) == (page, encoding, 0)
