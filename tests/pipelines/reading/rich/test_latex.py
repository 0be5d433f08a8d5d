"""LaTeX: papers that consist of one file or several, and malformed or malicious archives."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Mapping

import pytest

from pipelines.reading.rich import latex

LONG = "another document, longer than the main file "


def document(body: str, preamble: str = "") -> str:
    return (
        f"\\documentclass{{article}}\n\\title{{On\n  Mills}} % draft\n{preamble}\n"
        f"\\begin{{document}}\n{body}\n\\end{{document}}\nrest"
    )


def tarred(files: Mapping[str, str | bytes], kind: int = tarfile.USTAR_FORMAT) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=kind) as archive:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return sink.getvalue()


def reasons(found) -> list[str]:
    assert not found.texts
    return [bad[2] for bad in found.bad]


def test_preamble_and_comments_are_off_and_mathematics_stays(read: Callable) -> None:
    body = r"""
\section{Corn} % a section
Half, 50\% of it, \\% a comment after a line break
%  a line of its own
    % another
  $e^{i\pi} = -1$ and \[ \int_0^1 x\,dx \]



\begin{verbatim}
100 % of it
\end{verbatim}
\begin{comment}
gone
\end{comment}
\begin{equation}a\end{equation}
"""
    text = (
        "\\section{Corn}\nHalf, 50\\% of it, \\\\\n  $e^{i\\pi} = -1$ and \\[ \\int_0^1 x\\,dx \\]\n\n"
        "\\begin{verbatim}\n100 % of it\n\\end{verbatim}\n\\begin{equation}a\\end{equation}"
    )
    for end in ("\n", "\r\n", "\r"):
        found = read("a.tex", document(body).replace("\n", end).encode(), format="latex")
        assert (found.texts, found.bad) == ([text], [])
    assert json.loads(found.metas[0]) == {"title": "On Mills", "files": 1}


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (r"a \verb|50% off| b % c", r"a \verb|50% off| b"),
        (r"\verb*+%+ \lstinline[language=C]!%d! \\% c", r"\verb*+%+ \lstinline[language=C]!%d! \\"),
        (r"\url{http://x/a%20b} \href{y%z}{50\%} % c", r"\url{http://x/a%20b} \href{y%z}{50\%}"),
        (r"a % \verb|b|", "a"),
        (r"\verb|\begin{comment}| a", r"\verb|\begin{comment}| a"),
        ("\\% \\begin{verbatim}\n% a\n\\end{verbatim}", "\\% \\begin{verbatim}\n% a\n\\end{verbatim}"),
    ],
)
def test_a_percent_sign_in_inline_code_or_a_url_begins_no_comment(line: str, kept: str) -> None:
    assert latex._without_comments(f"{line}\nnext") == f"{kept}\nnext"


def test_text_before_a_comment_environment_stays_and_text_behind_it_goes() -> None:
    """LaTeX does the same: package verbatim drops the rest of the last line, package comment the rest of the
    first.
    """
    assert latex._without_comments("keep \\begin{comment}x\\end{comment} y\nnext") == "keep\nnext"
    assert latex._without_comments("keep \\begin{comment} x\nx\n\\end{comment} y\nnext") == "keep\nnext"


@pytest.mark.long
@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_inputs_are_the_files_of_the_archive(read: Callable, kind: int) -> None:
    files = {
        "./appendix.tex": document(LONG * 9),
        "src/main.tex": document(
            "\\input{one} \\include{sub/two}\n% \\input{no}\n\\input three.tex\n\\subfile{four}\\input{amsmacros}"
            "\\input{../appendix}"
        ),
        "src/one.tex": "One",
        "src/sub/two.tex": "two \\input{sub/five}",  # relative to the main file, as TeX has it
        "src/sub/five.tex": "five",
        "src/three.tex": "three",
        "src/four.tex": document("four"),
        "src/unused.tex": "unused",
    }
    for packed in (tarred(files, kind), gzip.compress(tarred(files, kind))):
        found = read("2401.00001", packed, format="latex")
        assert found.texts == ["One two five\nthree\n\nfour\n\n" + (LONG * 9).strip()]
        assert json.loads(found.metas[0]) == {
            "title": "On Mills", "main": "src/main.tex", "files": 7, "missing_inputs": 1
        }  # fmt: skip


@pytest.mark.long
def test_the_main_file_is_included_by_no_other_and_near_the_root(read: Callable) -> None:
    def main(files: dict[str, str]) -> str:
        return str(json.loads(read("a.tar", tarred(files), format="latex").metas[0])["main"])

    assert main({"a.tex": document("x"), "old/b.tex": document("x" * 99)}) == "a.tex"
    assert main({"a.tex": document("x"), "b.tex": document("longer")}) == "b.tex"
    assert main({"a.tex": document("\\input{b}"), "b.tex": document("x" * 99)}) == "a.tex"
    assert main({"class.tex": "\\documentclass{x}", "a.tex": "\\input{class}\\begin{document}x"}) == "a.tex"


def test_plain_tex_is_taken_as_a_whole(read: Callable) -> None:
    found = read("a.tex.gz", gzip.compress(b"\\magnification=1200\nText % none\n\\bye"), format="latex")
    assert found.texts == ["\\magnification=1200\nText\n\\bye"]


def test_files_that_include_themselves_are_cut(read: Callable) -> None:
    files = {"a.tex": document("a \\input{b}"), "b.tex": "b \\input{c} \\input{b}", "c.tex": "c \\input{a}"}
    found = read("a.tar", tarred(files), format="latex")
    assert found.texts == ["a b c"]
    assert json.loads(found.metas[0])["cut_inputs"] == 2
    chain = {"0.tex": document("0\\input{1}")} | {f"{n}.tex": f" {n}\\input{{{n + 1}}}" for n in range(1, 40)}
    found = read("b.tar", tarred(chain), format="latex")
    assert found.texts == [" ".join(map(str, range(15)))]
    assert read("c.tex", document("x \\input{c}").encode(), format="latex").texts == ["x"]


def test_inputs_that_multiply_are_set_aside(read: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    doubling = {"0.tex": document("\\input{1}\\input{1}")}
    doubling |= {f"{n}.tex": f"\\input{{{n + 1}}}" * 2 for n in range(1, 14)} | {"14.tex": "boom"}
    assert reasons(read("a.tar", tarred(doubling), format="latex")) == ["too_many_files"]
    large = {"0.tex": document("\\input{1}" * 200), "1.tex": "large " * 1000}
    assert reasons(read("b.tar", tarred(large), format="latex", max_document_bytes=1 << 20)) == ["oversized"]
    assert reasons(read("c.tar", tarred({"0.tex": "x" * 5000}), format="latex", max_document_bytes=4000)) == [
        "oversized"
    ]
    monkeypatch.setattr(latex, "_MOST_MEMBERS", 3)
    with pytest.raises(latex.BrokenInput, match="too_many_files"):
        latex._files(tarred({f"{n}.tex": "" for n in range(4)}), 1 << 20)


def test_names_and_links_lead_nowhere(read: Callable, tmp_path) -> None:
    secret = tmp_path / "secret.tex"
    secret.write_text("secret")
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        body = f"x \\input{{{secret}}}\\input{{../secret}}\\input{{link}}\\input{{/etc/passwd}}"
        for name, content in (("main.tex", document(body)), ("../secret.tex", "above"), (str(secret), "absolute")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content.encode()))
        for name, kind in (
            ("link.tex", tarfile.SYMTYPE),
            ("hard.tex", tarfile.LNKTYPE),
            ("pipe.tex", tarfile.FIFOTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(secret)
            archive.addfile(member)
    found = read("a.tar", sink.getvalue(), format="latex")
    assert (found.texts, found.bad) == (["x"], [])
    assert json.loads(found.metas[0])["missing_inputs"] == 4


@pytest.mark.long
def test_files_that_are_no_papers_or_are_damaged(read: Callable) -> None:
    whole = tarred({"a.tex": document("text " * 500)})
    packed = gzip.compress(whole)
    assert reasons(read("a.tex", b"", format="latex")) == ["empty"]
    assert reasons(read("a.gz", gzip.compress(b"%PDF-1.5 \\begin"), format="latex")) == ["not_latex"]
    assert reasons(read("a.tar", tarred({"x.pdf": "%PDF", "x.sty": "\\input{y}"}), format="latex")) == ["not_latex"]
    assert reasons(read("a.tar", tarred({"x.tex": "no document"}), format="latex")) == ["not_latex"]
    assert reasons(read("b.tex", document(" % nothing").encode(), format="latex")) == ["no_text_extracted"]
    assert reasons(read("b.tar.gz", packed[:-9], format="latex")) == ["truncated"]
    assert reasons(read("b.tar", whole[:1500], format="latex"))[0] in ("truncated", "corrupt")
    assert reasons(read("c.tar", whole[:100] + b"\xff" * 30 + whole[130:], format="latex"))[0] in (
        "corrupt",
        "not_latex",
    )
    assert reasons(read("d.tar", whole, format="latex", max_file_bytes=1000)) == ["file_bytes"]
    zeros = gzip.compress(bytes(8 << 20))
    assert reasons(read("d.gz", zeros, format="latex", max_decoded_bytes=1 << 20)) == ["decoded_limit"]


def test_papers_in_archives_and_other_encodings(read: Callable) -> None:
    inner = tarred({"a.tex": document("caf\xe9").encode("latin-1")})
    members = {
        "x/1.gz": gzip.compress(inner),
        "x/2.tar": inner,
        "x/3.tex": document("three"),
        "x/4.zip": b"PK\x03\x04" + b"0" * 40,
    }
    found = read("bulk.tar", tarred(members), format="latex", members=("x/*",))
    assert found.texts == ["café", "café", "three"]
    assert [bad[2] for bad in found.bad] == ["nested_archive"]


@pytest.mark.long
@pytest.mark.parametrize(
    "piece",
    [
        "\\",
        "%",
        "\\input{",
        "\\begin{",
        "{",
        "\\title{",
        "\\title[",
        "\n ",
        "\\begin{verbatim}",
        " %",
        "\\verb|",
        "\\lstinline[",
        "\\url{",
    ],
)
def test_texts_that_take_a_backtracking_parser_minutes(read: Callable, piece: str) -> None:
    found = read("a.tex", document("x " + piece * 40_000).encode(), format="latex", page_cpu_seconds=5)
    assert len(found.texts) == 1
