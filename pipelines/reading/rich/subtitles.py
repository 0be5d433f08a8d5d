"""Read the text of subtitles: SubRip (SRT) and WebVTT files without their numbers, times, positions and tags."""

import html
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, TextRecord, to_json
from pipelines.reading.sources.source import Source

_TIME = r"(-?)(?:([0-9]{1,4}):)?([0-9]{1,2}):([0-9]{1,2})[.,:]([0-9]{1,3})"
_TIMING = re.compile(rf"[ \t]*{_TIME}[ \t]*-->[ \t]*{_TIME}(?:[ \t].*)?")  # positions may follow
_LINE_END = re.compile(r"\r\n|\r|\n")
_NUMBER = re.compile(r"[ \t]*[0-9]+[ \t]*")
_VTT_TAG = re.compile(r"<[^<>]*>")  # WebVTT, section 4.2.2: text holds no other `<`
_SRT_TAG = re.compile(r"</?[A-Za-z][^<>]*>|\{\\[^{}]*\}")  # HTML, and overrides of SubStation such as {\an8}
_VTT_BLOCK = re.compile(r"(NOTE|STYLE|REGION)([ \t].*)?")
_LANGUAGE = re.compile(r"Language:[ \t]*([A-Za-z0-9-]+)[ \t]*")
_SENTENCE_END = (".", "!", "?", "…", "。", "！", "？", "۔", "؟", "।", "♪", ":")
_CLOSING = "\"'”’»」』)]"
_ROLLED_LINES = 4  # more are not on a screen
_DASHES = ("-", "–", "—")


@dataclass
class _Cue:
    """A cue: its begin and end in milliseconds, and its lines of text."""

    begin: int
    end: int
    lines: list[str]


def read_subtitles(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield the whole file as one document: the lines of its cues.

    Consecutive lines are joined with a space, within a cue and across cues. A new line of text begins only
    after the end of a sentence or before a dash, which marks another speaker. If a cue follows the previous
    cue without a pause, lines that repeat the end of that cue are left out, because rolling captions show
    every line twice.

    `meta` holds `cues` (their number), `seconds` (the time at which the last cue ends), and for WebVTT the
    `language` that its header names. Subtitles are never split.
    """
    held = entry.read(source.max_document_bytes)
    if held is None:
        yield Bad("oversized", entry.size)
        return
    try:
        lines = _LINE_END.split(held.decode(source.encoding).removeprefix("\ufeff"))
    except UnicodeError:
        yield Bad("undecodable", len(held))
        return
    is_vtt = re.match(r"WEBVTT(?:[ \t].*)?\Z", lines[0]) is not None
    cues = _cues(lines, is_vtt)
    if not cues:
        yield Bad("not_subtitles" if held else "empty", len(held))
        return
    meta: dict[str, object] = {"cues": len(cues), "seconds": max(cue.end for cue in cues) / 1000}
    if is_vtt and (language := _language(lines)):
        meta["language"] = language
    yield TextRecord(_text(cues, is_vtt), len(held), None, to_json(meta))


def _cues(lines: list[str], is_vtt: bool) -> list[_Cue]:
    cues: list[_Cue] = []
    skipping = False  # within a comment or a style sheet
    for line in lines:
        if match := _TIMING.fullmatch(line):
            if cues:
                _remove_name(cues[-1].lines, is_vtt)
            cues.append(_Cue(_milliseconds(match.groups()[:5]), _milliseconds(match.groups()[5:]), []))
            skipping = False
        elif (
            is_vtt and (not cues or not cues[-1].lines or not cues[-1].lines[-1].strip()) and _VTT_BLOCK.fullmatch(line)
        ):
            skipping = True
        elif skipping:
            skipping = bool(line.strip())
        elif cues:
            cues[-1].lines.append(line)
    return cues


def _remove_name(lines: list[str], is_vtt: bool) -> None:
    """Remove the identifier of the next cue from the end of a cue's lines. In WebVTT it is any line after a
    blank line. In SRT it is a number; a blank line need not precede it, because some files have no blank
    lines.
    """
    if lines and lines[-1].strip():
        after_blank = len(lines) > 1 and not lines[-2].strip()
        if (is_vtt and after_blank) or (not is_vtt and _NUMBER.fullmatch(lines[-1])):
            lines.pop()


def _milliseconds(parts: tuple[str | None, ...]) -> int:
    sign, hours, minutes, seconds, fraction = parts
    total = (int(hours or 0) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    return (-1 if sign else 1) * (total * 1000 + int((fraction or "0").ljust(3, "0")))


def _language(lines: list[str]) -> str | None:
    for line in lines[1:]:
        if not line.strip():
            break
        if match := _LANGUAGE.fullmatch(line):
            return match[1]
    return None


def _text(cues: list[_Cue], is_vtt: bool) -> str:
    pieces: list[str] = []
    before: list[str] = []
    end, is_open = -math.inf, False
    for cue in cues:
        shown = [plain for line in cue.lines if (plain := _plain(line, is_vtt))]
        for line in shown[_repeated(before, shown) :] if cue.begin <= end else shown:
            if pieces:
                pieces.append(" " if is_open and not line.startswith(_DASHES) else "\n")
            pieces.append(line)
            is_open = not line.rstrip(_CLOSING).endswith(_SENTENCE_END)
        before, end = shown, cue.end
    return "".join(pieces)


def _plain(line: str, is_vtt: bool) -> str:
    line = html.unescape(_VTT_TAG.sub("", line)) if is_vtt else _SRT_TAG.sub("", line)
    return " ".join(line.split())


def _repeated(before: list[str], lines: list[str]) -> int:
    most = min(len(before), len(lines), _ROLLED_LINES)
    return next((count for count in range(most, 0, -1) if before[-count:] == lines[:count]), 0)
