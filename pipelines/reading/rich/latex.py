"""The LaTeX source of a paper as one text: its main file, with the files that it includes inserted, without
preamble and comments.
"""

import io
import posixpath
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field

from pipelines.reading.entries.reasons import BrokenInput
from pipelines.reading.web.extraction import PageLimits

_SUFFIXES = (".tex", ".ltx", ".latex")
_MOST_MEMBERS = 20_000  # of an archive; tarfile holds a header of each
_MOST_INPUTS = 10_000
_MOST_DEPTH = 15  # TeX itself has 15 files open at most (texmf.cnf, max_in_open)
_CLASS = re.compile(r"\\document(?:class|style)\b")
_BEGIN, _END = re.compile(r"\\begin\s*\{document\}"), re.compile(r"\\end\s*\{document\}")
_PLAIN_TEX = re.compile(r"\\(?:bye|magnification|input)\b")
_INPUT = re.compile(r"\\(?:input|include|subfile)\s*\{([^{}\n]{1,200})\}|\\input\s+([^\s{}\\%]{1,200})")
_TITLE = re.compile(r"\\title\b\s*(?:\[[^\[\]]{0,500}\]\s*)?\{")
_VERBATIM = r"\\begin\s*\{(?:verbatim\*?|Verbatim|lstlisting|minted|comment)\}"
_BEGUN, _ENDED = re.compile(r"\\begin\s*\{([^{}]+)\}"), re.compile(r"\\end\s*\{([^{}]+)\}")
_MARKS = (re.escape(mark) for mark in "!\"#$%&'()+,-./:;<=>?@\\]^_`|}~0123456789")
_MARKED = "|".join(f"{mark}[^{mark}]*{mark}" for mark in _MARKS)  # no group: it would err in a possessive repetition
# What precedes the first comment or verbatim environment of a line. In inline code and in URLs, % begins no comment.
_CODE = re.compile(
    rf"(?:[^\\%]++|\\(?:[Vv]erb\*?|lstinline(?:\[[^\[\]]*\])?)(?:{_MARKED})"
    rf"|\\(?:url|href|nolinkurl|path|lstinline)\s*\{{[^{{}}]*\}}|(?!{_VERBATIM})\\.?)*+"
)
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*){2,}")
_TITLE_CHARACTERS = 1000


def latex_text(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    r"""Return ({"meta": ...}, text) of a LaTeX file, or of a tar with the files of a paper. If it is to be set
    aside, return ({"reason": ...}, "") instead. `label` is not used.

    The text is LaTeX, with its mathematics and commands but without comments. It goes from `\begin{document}`
    to `\end{document}` of the main file. `\input`, `\include` and `\subfile` are replaced by the LaTeX files
    (`.tex`, `.ltx`, `.latex`) that they name in the archive. A command is left out if the archive has no such
    file, if its file is already being included, or if it nests deeper than TeX allows. Plain TeX has no
    preamble and is taken as a whole.

    `meta` gets `title`, if there is one; `main`, the name of the main file in an archive; `files`, the number
    of files used, repetitions included; `missing_inputs`, the number of commands left out because the archive
    has no LaTeX file of that name; and `cut_inputs`, the number of commands left out for another reason.
    Counts of 0 are omitted. Reasons: `not_latex`, `corrupt`, `truncated`, `too_many_files`, `oversized`,
    `no_text_extracted`.
    """
    try:
        files = _files(data, limits.text_bytes)
        main = _main_file(files)
        paper = _Paper(files, limits.text_bytes, posixpath.dirname(main))
        paper.include(main, ())
    except BrokenInput as broken:
        return {"reason": broken.reason}, ""
    whole = "".join(paper.pieces)
    text = _BLANK_LINES.sub("\n\n", _body(whole)).strip()
    if not text:
        return {"reason": "no_text_extracted"}, ""
    title = _title(whole)
    meta = {"title": title} if title else {}
    if main:
        meta["main"] = main
    counts = {"files": paper.used, "missing_inputs": paper.missing, "cut_inputs": paper.cut}
    return {"meta": meta | {name: number for name, number in counts.items() if number}}, text


def _body(text: str) -> str:
    begin = _BEGIN.search(text)
    if not begin:
        return text
    end = _END.search(text, begin.end())
    return text[begin.end() : end.start() if end else None]


def _files(data: bytes, most: int) -> dict[str, str]:
    """Return the texts of a paper's LaTeX files, without comments, keyed by file name. If `data` is not a
    tar, it is a single file, with the name "". Raises BrokenInput if the tar is damaged or has too many
    members, or if there are more than `most` bytes of LaTeX.
    """
    if data[257:262] != b"ustar":
        if len(data) > most:
            raise BrokenInput("oversized")
        return {"": _without_comments(_decode(data))}
    files: dict[str, str] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for number, member in enumerate(archive):
                if number >= _MOST_MEMBERS:
                    raise BrokenInput("too_many_files")
                name = posixpath.normpath(member.name)
                is_file = member.isreg() and not member.issparse() and name.lower().endswith(_SUFFIXES)
                # Names only choose among members: one above the root of the archive is none of the paper's.
                if is_file and not name.startswith(("/", "../")) and (stream := archive.extractfile(member)):
                    most -= member.size
                    if most < 0:
                        raise BrokenInput("oversized")
                    content = stream.read()
                    if len(content) < member.size:
                        raise BrokenInput("truncated")
                    files[name] = _without_comments(_decode(content))
    except (tarfile.TarError, ValueError, OverflowError):
        raise BrokenInput("corrupt") from None
    return files


def _decode(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _without_comments(text: str) -> str:
    r"""Remove comments, lines that held nothing but a comment, and the lines of `comment` environments. The
    lines of verbatim environments are unchanged. As in the packages comment and verbatim, text before
    `\begin{comment}` on its line is kept, and text after `\end{comment}` on its line is removed.
    """
    lines: list[str] = []
    verbatim = ""
    for line in text.split("\n"):
        if verbatim:
            if verbatim != "comment":
                lines.append(line)
            if verbatim in _ENDED.findall(line):
                verbatim = ""
            continue
        code = line[: _CODE.match(line).end()]  # type: ignore[union-attr]  # it matches the empty string
        begun = _BEGUN.match(line, len(code))
        if begun and begun[1] not in _ENDED.findall(line, begun.end()):
            verbatim = begun[1]
        if code == line or (begun and begun[1] != "comment"):
            lines.append(line)
        elif code.strip():
            lines.append(code.rstrip())
    return "\n".join(lines)


def _main_file(files: Mapping[str, str]) -> str:
    r"""Return the name of the file that is compiled, normally one with a document class and
    `\begin{document}`. Among several, prefer one that no other file includes, then the one nearest to the
    root of the archive, then the longest. Raises BrokenInput if there is no such file.
    """
    included = {name for one, text in files.items() for name in _included(text, posixpath.dirname(one), files)}
    candidates = [name for name, text in files.items() if _CLASS.search(text) and _BEGIN.search(text)]
    if not candidates:  # the class may be in a file that the main one includes, or there is none
        candidates = [name for name, text in files.items() if _BEGIN.search(text)]
    if not candidates and len(files) == 1:
        candidates = [name for name, text in files.items() if _CLASS.search(text) or _PLAIN_TEX.search(text)]
    if not candidates:
        raise BrokenInput("not_latex")
    return min(candidates, key=lambda name: (name in included, name.count("/"), -len(files[name]), name))


def _included(text: str, folder: str, files: Mapping[str, str]) -> set[str]:
    found = (_resolve(match[1] or match[2], folder, files) for match in _INPUT.finditer(text))
    return {name for name in found if name is not None}


def _resolve(reference: str, folder: str, files: Mapping[str, str]) -> str | None:
    name = posixpath.normpath(posixpath.join(folder, reference.strip().strip('"')))
    return next((each for each in (f"{name}.tex", name) if each in files), None)


@dataclass
class _Paper:
    """The text of a paper, assembled from its files. `used` counts the files used, repetitions included. Of
    the commands that are left out, `missing` counts those whose file does not exist, and `cut` those that are
    circular or nest too deeply.
    """

    files: Mapping[str, str]
    most: int  # bytes of text
    folder: str
    pieces: list[str] = field(default_factory=list)
    used: int = 0
    missing: int = 0
    cut: int = 0
    _size: int = 0
    _inputs: int = 0

    def include(self, name: str, above: tuple[str, ...]) -> None:
        """Add a file, together with the files that it includes. `above` is the chain of files through which
        it is included.
        """
        text, place = self.files[name], 0
        if above:  # a subfile is a document of its own, too
            text = _body(text)
        self.used += 1
        for match in _INPUT.finditer(text):
            self._inputs += 1
            if self._inputs > _MOST_INPUTS:
                raise BrokenInput("too_many_files")
            self._add(text[place : match.start()])
            place = match.end()
            inner = _resolve(match[1] or match[2], self.folder, self.files)
            if inner is None:
                self.missing += 1
            elif inner == name or inner in above or len(above) + 1 >= _MOST_DEPTH:
                self.cut += 1
            else:
                self.include(inner, (*above, name))
        self._add(text[place:])

    def _add(self, piece: str) -> None:
        self._size += len(piece)  # in characters, of which none has less than a byte
        if self._size > self.most:
            raise BrokenInput("oversized")
        self.pieces.append(piece)


def _title(text: str) -> str | None:
    match = _TITLE.search(text)
    if not match:
        return None
    depth = 1
    for place in range(match.end(), min(len(text), match.end() + _TITLE_CHARACTERS)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return " ".join(text[match.end() : place].split()) or None
    return None
