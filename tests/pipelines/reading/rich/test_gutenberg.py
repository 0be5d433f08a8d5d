"""Project Gutenberg files in forms since 1993: the header, credits and licence around a book are removed, and
nothing of the book itself.
"""

import json

import pytest

HEAD = """\ufeffThe Project Gutenberg EBook of The Mill on the Hill, by Ann Author

This eBook is for the use of anyone anywhere at no cost.

Title: The Mill on the Hill
       A Tale

Author: Ann Author

Translator: Tom Translator

Release Date: May 1, 2008 [EBook #1234]
Last Updated: July 4, 2010

Language: English

Character set encoding: {encoding}

"""
START = "*** START OF {which} PROJECT GUTENBERG EBOOK THE MILL ON THE HILL ***"
CREDITS = "Produced by A. Volunteer and the Online Distributed\nProofreading Team at https://www.pgdp.net\n"
BOOK = "THE MILL ON THE HILL\n\nCHAPTER I\n\n    “Produced by wind,” she said,\nand the mill turned.\n\n* * * * *\n\nTHE END"
END = "*** END OF {which} PROJECT GUTENBERG EBOOK THE MILL ON THE HILL ***"
SMALL_PRINT = "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*"
FORMS = {
    "since 2023": (START.format(which="THE"), CREDITS, END.format(which="THE")),
    "2004": (
        START.format(which="THIS").replace("*** ", "***"),
        "E-text prepared by A. Volunteer\n",
        END.format(which="THIS"),
    ),
    "2008": (
        START.format(which="THIS"),
        CREDITS,
        f"End of Project Gutenberg's The Mill on the Hill, by Ann Author\n\n{END.format(which='THIS')}",
    ),
    "long title": (
        "*** START OF THE PROJECT GUTENBERG EBOOK THE MILL\nON THE HILL, WITH A LONG SUBTITLE ***",
        "",
        END.format(which="THE"),
    ),
    "1993": (SMALL_PRINT, "", "End of the Project Gutenberg Etext of The Mill on the Hill"),
    "1998": (
        SMALL_PRINT.replace("*END*THE", "*END THE"),
        "This etext was prepared by A. Volunteer.\n",
        "End of this Project Gutenberg Etext",
    ),
    "2003": (
        START.format(which="THE") + "\n\nPlease take a look at the important information.\n\n" + SMALL_PRINT,
        "",
        END.format(which="THE"),
    ),
}


def file_of(form: str, encoding: str = "UTF-8", book: str = BOOK) -> str:
    start, credit, end = FORMS[form]
    return f"{HEAD.format(encoding=encoding)}{start}\n\n\n{credit}\n\n{book}\n\n\n\n{end}\n\nSection 1. General Terms of Use\n"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_every_form_gives_the_book_alone(read, form, line_end):
    found = read("1234-0.txt", file_of(form).replace("\n", line_end).encode(), format="gutenberg")
    assert found.texts == [BOOK]
    assert json.loads(found.metas[0]) == {
        "title": "The Mill on the Hill A Tale",
        "author": "Ann Author",
        "translator": "Tom Translator",
        "released": "May 1, 2008",
        "language": "English",
        "ebook": "1234",
    }


def test_the_declared_encoding_is_that_of_files_that_are_not_utf_8(read):
    book = "Chapitre I\n\nLe vieux moulin était là."
    latin = file_of("2008", "ISO-8859-1", book).removeprefix("\ufeff").encode("latin-1")
    assert read("1234-8.txt", latin, format="gutenberg").texts == [book]
    assert read("1234-8.txt", latin.replace(b"ISO-8859-1", b"zip"), format="gutenberg").bad[0][2] == "undecodable"
    assert read("1234-8.txt", latin.replace(b"ISO-8859-1", b"UTF-8"), format="gutenberg").bad[0][2] == "undecodable"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("A book without any frame.", "not_gutenberg"),
        ("*** START OF THE WAR ***\n\ntext\n", "not_gutenberg"),
        (file_of("since 2023").partition("*** END")[0], "truncated"),
        (f"{START.format(which='THE')}\n\n{END.format(which='THE')}\n", "empty"),
        ("", "empty"),
        (file_of("since 2023", book="x" * 3000), "oversized"),
    ],
)
def test_other_files_are_set_aside(read, content, reason):
    found = read("a.txt", content.encode(), format="gutenberg", max_document_bytes=2500)
    assert (found.texts, [each[2] for each in found.bad]) == ([], [reason])


def test_a_long_book_is_cut_into_documents(read):
    book = "\n".join(f"line {number} of the book" for number in range(200))
    found = read(
        "a.txt",
        file_of("since 2023", book=book).encode(),
        format="gutenberg",
        max_document_bytes=1000,
        oversized="split",
    )
    assert "".join(found.texts) == book
    assert len(found.texts) > 3
    assert len(set(found.metas)) == 1


@pytest.mark.long
def test_marks_without_an_end_take_linear_time(read):
    credit = "Credits: x\n\n" * 200_000
    book = read("b.txt", file_of("1993", book=credit + "Credits").encode(), format="gutenberg")
    assert book.texts == ["Credits"]
    content = "*** START OF THE PROJECT GUTENBERG EBOOK " * 20_000 + "\n" + "Credits: x\n\n" * 20_000
    assert read("a.txt", content.encode(), format="gutenberg").bad[0][2] in ("not_gutenberg", "truncated")
