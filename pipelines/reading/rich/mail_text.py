"""The text that the sender of a message wrote: decoded, without quoted text or signature."""

import re
from collections.abc import Iterator
from datetime import UTC
from email import message_from_bytes
from email.errors import MessageError
from email.header import decode_header
from email.message import Message
from email.utils import parsedate_to_datetime

from pipelines.reading.web.charset import codec_of_label, decode, decode_page, is_undecodable
from pipelines.reading.web.extraction import PageLimits, fragment_text

_FIELDS = {
    "From": "from",
    "Subject": "subject",
    "Message-ID": "message_id",
    "In-Reply-To": "in_reply_to",
    "List-Id": "list",
}
_QUOTE = re.compile(r"[ \t]?>")
_SIGNATURE = re.compile(r"--[ \t]?")  # RFC 3676, section 4.3, and without the blank, which some programs lose
_ORIGINAL = re.compile(r"[-_ \t]{2,}Original Message[-_ \t]{2,}", re.IGNORECASE)
_ATTRIBUTION = re.compile(r"(?=.*[@\d]).*:")  # of a quote: `On 3 March 2015, Eva wrote:`
_ATTRIBUTION_LINES = 3


def mail_text(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Return ({"meta": ...}, text) of a message, or ({"reason": ...}, "") if it is to be set aside. `label`
    is not used. The text is the message's plain text, or the text of its HTML if it has no plain text.
    Attachments and enclosed messages are left out.

    These are removed from plain text: the signature, which begins at the first line `-- ` or `--`; everything
    from a line like `--- Original Message ---` on; lines that begin with `>`; and the attribution before such
    lines. An attribution is a paragraph of up to three lines, or the last line of a longer paragraph, if it
    ends in a colon and has an `@` or a digit.

    `meta` gets `from`, `subject`, `date` (ISO 8601, in UTC), `message_id`, `in_reply_to` and `list`, each if
    the message has it. Reasons: `bad_message`, `undecodable`, `html_nodes`, `html_depth`, and `oversized`.
    """
    import resiliparse.extract.html2text
    import resiliparse.parse.html  # noqa: F401

    try:
        message = message_from_bytes(data)
        parts = list(_parts(message))
    except (RecursionError, ValueError, LookupError, TypeError, MessageError):
        return {"reason": "bad_message"}, ""
    if not message.keys():
        return {"reason": "bad_message"}, ""
    plain = [part for part in parts if part.get_content_type() == "text/plain"]
    texts: list[str] = []
    for part in plain or [part for part in parts if part.get_content_type() == "text/html"]:
        payload = part.get_payload(decode=True)
        content = payload if isinstance(payload, bytes) else b""
        if plain:
            text = _decode(content, part)
            if text is None:
                return {"reason": "undecodable"}, ""
            texts.append(_own_text(_unwrap(text, part)))
        else:
            head, text = fragment_text(decode_page(content, part.get_content_charset("")).text, limits)
            if head:
                return head, ""
            texts.append(text)
    text = "\n\n".join(filter(str.strip, texts))
    if len(text) > limits.text_bytes:
        return {"reason": "oversized"}, ""
    return {"meta": _headers(message)}, text


def _parts(message: Message) -> Iterator[Message]:
    """Yield the text parts of a message, in order, without attachments and without the parts of enclosed
    messages.
    """
    waiting: list[Message] = [message]
    while waiting:
        part = waiting.pop()
        payload = part.get_payload() if part.is_multipart() else None  # of a text, TypeError for `charset*=x`
        if part.get_content_maintype() == "multipart" and isinstance(payload, list):
            waiting += [each for each in reversed(payload) if isinstance(each, Message)]
        elif part.get_content_maintype() == "text" and part.get_content_disposition() != "attachment":
            part.get_params()  # TypeError for `charset*0*=x; charset*=y`
            yield part


def _decode(content: bytes, part: Message) -> str | None:
    codec = codec_of_label(part.get_content_charset("utf-8")) or "utf-8"
    decoded = decode(content, codec)
    if decoded.replaced:
        decoded = decode_page(content)
    return None if decoded.replaced and is_undecodable(decoded.text) else decoded.text.replace("\r\n", "\n")


def _unwrap(text: str, part: Message) -> str:
    """Return a text with the soft line breaks of RFC 3676 (`format=flowed`) removed, if the part declares
    that format.
    """
    if str(part.get_param("format", "")).lower() != "flowed":
        return text
    keep = 0 if str(part.get_param("delsp", "")).lower() == "yes" else 1
    lines: list[str] = []
    flows = False
    for line in text.split("\n"):
        line = line.removeprefix(" ")  # it protects `>` and `From `
        fixed = _QUOTE.match(line) is not None or _SIGNATURE.fullmatch(line) is not None
        if flows and not fixed:
            lines[-1] = lines[-1][: len(lines[-1]) - 1 + keep] + line
        else:
            lines.append(line)
        flows = line.endswith(" ") and not fixed
    return "\n".join(lines)


def _own_text(text: str) -> str:
    lines: list[str] = []
    quoted = False
    for line in text.split("\n"):
        if _SIGNATURE.fullmatch(line) or _ORIGINAL.fullmatch(line.strip()):
            break
        if not _QUOTE.match(line):
            lines.append(line)
        elif not quoted:
            _remove_attribution(lines)
            lines.append("")
        quoted = _QUOTE.match(line) is not None
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")


def _remove_attribution(lines: list[str]) -> None:
    while lines and not lines[-1].strip():
        lines.pop()
    count = next((n for n, line in enumerate(reversed(lines)) if not line.strip()), len(lines))
    tail = count if count <= _ATTRIBUTION_LINES else 1
    if tail and _ATTRIBUTION.fullmatch(" ".join(lines[-tail:]).strip()):
        del lines[-tail:]


def _headers(message: Message) -> dict[str, str]:
    found = {}
    for name, key in _FIELDS.items():
        value = message.get(name)
        if value is not None and (text := _header(value)):
            found[key] = text
    try:
        date = parsedate_to_datetime(str(message.get("Date", "")))
        found["date"] = (date.astimezone(UTC) if date.tzinfo else date).replace(tzinfo=None).isoformat()
    except (ValueError, TypeError, OverflowError, IndexError):
        pass
    return found


def _header(value: object) -> str:
    """Return a header with its encoded words (RFC 2047) decoded, on one line, or "" if it is malformed."""
    pieces = []
    try:
        for piece, label in decode_header(value):  # type: ignore[arg-type]
            content = piece.encode("ascii", "surrogateescape") if isinstance(piece, str) else piece
            pieces.append(decode(content, codec_of_label(label or "utf-8") or "utf-8").text)
    except (ValueError, MessageError):
        return ""
    return " ".join("".join(pieces).split())
