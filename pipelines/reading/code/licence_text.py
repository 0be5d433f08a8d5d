"""Recognise licences by their texts, or by the notice or SPDX tag at the head of a source file, and name them
as the SPDX licence list does (https://spdx.org/licenses/).

A long licence is recognised by its title, which includes its version. A short licence is recognised by the
sentences that grant and restrict rights, taken from the texts of the SPDX list. The text of the GPL does not
say whether later versions are allowed, so for a licence file `GPL-2.0` names only the text, as on GitHub.
"""

import re
from collections.abc import Iterator

UNKNOWN = "unknown"
_WORDS = re.compile(r"[a-z0-9]+")
_TITLES = {
    "Apache-2.0": ("apache license version 2 0 january 2004", 1600),
    "GPL-1.0": ("gnu general public license version 1 february 1989", 2100),
    "GPL-2.0": ("gnu general public license version 2 june 1991", 3000),
    "GPL-3.0": ("gnu general public license version 3 29 june 2007", 5700),
    "LGPL-2.0": ("gnu library general public license version 2 june 1991", 4200),
    "LGPL-2.1": ("gnu lesser general public license version 2 1 february 1999", 4400),
    "LGPL-3.0": ("gnu lesser general public license version 3 29 june 2007", 1300),
    "AGPL-3.0": ("gnu affero general public license version 3 19 november 2007", 5600),
    "MPL-1.1": ("mozilla public license version 1 1", 3900),
    "MPL-2.0": ("mozilla public license version 2 0 1 definitions", 2800),
    "EPL-1.0": ("eclipse public license v 1 0", 1800),
    "EPL-2.0": ("eclipse public license v 2 0", 2300),
    "EUPL-1.2": ("european union public licence v 1 2", 2400),
    "Artistic-2.0": ("the artistic license 2 0", 1500),
    "BSL-1.0": ("boost software license version 1 0 august 17th 2003", 250),
    "PSF-2.0": ("python software foundation license version 2", 400),
    "Python-2.0": ("beopen com license agreement for python 2 0", 1700),
    "CC0-1.0": ("cc0 1 0 universal", 1100),
    "CC-BY-4.0": ("attribution 4 0 international public license", 2700),
    "CC-BY-SA-4.0": ("attribution sharealike 4 0 international public license", 2900),
    "WTFPL": ("do what the fuck you want to public license version 2 december 2004", 90),
}
"""The title of each licence, and about how many words its text has."""
_GRANTS = {
    "MIT": ("permission is hereby granted free of charge to any person obtaining a copy of", 170),
    "BSD": ("redistribution and use in source and binary forms with or without modification are permitted", 230),
    "ISC": ("distribute this software for any purpose with or without fee is hereby granted", 130),
    "Unlicense": ("this is free and unencumbered software released into the public domain", 220),
    "Zlib": ("the origin of this software must not be misrepresented", 150),
}
_RESTRICTIONS = re.compile(
    r" commons clause | for non ?commercial (?:use|purposes) only | non ?commercial (?:use|purposes) only "
)
_TERMS = 1800  # characters from the grant on that hold all conditions of a short licence
_SEVERAL = 2  # a text with more than so many times the words of the licences in it holds something else
_FREE_WORDS = 100  # names of holders, and a sentence about the project

_OR_LATER = r"(?: (or)(?: at your option)?(?: any)? (?:later|newer)\b)?"
_VERSION = r"(?:either )?version (\d)(?: (\d))?\b(?: of the license)?" + _OR_LATER
_NOTICE_GNU = re.compile(
    r"gnu (affero |lesser |library )?general public licen[cs]e (?:as published by the free software foundation )?"
    rf"(?:either )?{_VERSION}"
)
_NOTICES = {
    "Apache-2.0": "licensed under the apache license version 2 0",
    "MPL-2.0": "subject to the terms of the mozilla public license v 2 0",
    "BSL-1.0": "distributed under the boost software license version 1 0",
}
_ID = r"\(*(?:LicenseRef-|DocumentRef-)?[A-Za-z0-9][A-Za-z0-9.+-]*\)*"
_SPDX = re.compile(rf"SPDX-License-Identifier:[ \t]*({_ID}(?:[ \t]+(?:AND|OR|WITH)[ \t]+{_ID}){{0,10}})")


def licences_in(text: str) -> list[str]:
    """Return the SPDX identifiers of the licences in a licence file, sorted. `unknown` is among them if the
    file also has much other text, or a permission notice whose conditions are not those of a known licence.
    The only identifier is `unknown` if no licence is recognised, or if the file has a common phrase that
    restricts commercial use. A file without words has none.
    """
    words = _WORDS.findall(text.lower())
    plain = f" {' '.join(words)} "
    if not words:
        return []
    if _RESTRICTIONS.search(plain):
        return [UNKNOWN]
    length = _FREE_WORDS
    found: set[str] = set()
    for name, (title, size) in _TITLES.items():
        if count := plain.count(f" {title} "):
            found.add(name)
            length += size * count
    if "Python-2.0" in found:  # which begins with it
        found.discard("PSF-2.0")
    for name, grant, place in _grants(plain):
        found.add(_variant(name, plain[place : place + _TERMS]))
        length += grant
    found = found or _notices(plain)
    if not found or len(words) > _SEVERAL * length:
        found.add(UNKNOWN)
    return sorted(found)


def licence_of_header(text: str) -> str | None:
    """Return the SPDX expression of the licence that the head of a source file states, or None if it states
    none. An `SPDX-License-Identifier` tag (https://reuse.software/spec/) takes precedence. Without a tag,
    several licences are joined with AND, and a permission notice that matches no known licence is `unknown`.
    """
    if tag := _SPDX.search(text):
        return tag[1].rstrip("-.") if tag[1].count("(") == tag[1].count(")") else None
    plain = f" {' '.join(_WORDS.findall(text.lower()))} "
    granted = {_variant(name, plain[place : place + _TERMS]) for name, _, place in _grants(plain)}
    return together(sorted(_notices(plain) | granted))


def _notices(plain: str) -> set[str]:
    found = {name for name, notice in _NOTICES.items() if f" {notice} " in plain}
    for family, major, minor, later in _NOTICE_GNU.findall(plain):
        name = {"affero ": "AGPL", "lesser ": "LGPL", "library ": "LGPL"}.get(family, "GPL")
        found.add(f"{name}-{major}.{minor or 0}-{'or-later' if later else 'only'}")
    return found


def _grants(plain: str) -> Iterator[tuple[str, int, int]]:
    """Yield the family, the usual number of words and the position of each short licence in `plain`."""
    for name, (grant, size) in _GRANTS.items():
        place = plain.find(f" {grant} ")
        while place >= 0:
            yield name, size, place
            place = plain.find(f" {grant} ", place + 1)


def together(licences: list[str]) -> str | None:
    """Return the SPDX expression that joins the licences with AND, as if all of them applied, or None if
    there are none.
    """
    return " AND ".join(dict.fromkeys(licences)) or None


def _variant(name: str, plain: str) -> str:
    """Return the SPDX identifier of a licence of the family `name` (MIT, BSD, ISC, ...), or `unknown`.
    `plain` is its text, beginning with the grant.
    """
    if name == "MIT":
        if "shall be used for good not evil" in plain:
            return "JSON"
        if "this permission notice" not in plain:
            if "redistributions of source code must retain" in plain:
                return "NCSA"
            return UNKNOWN if "subject to" in plain else "MIT-0"
        return "X11" if "except as contained in this notice the name" in plain else "MIT"
    if name == "BSD":
        if "advertising materials mentioning features" in plain:
            return "BSD-4-Clause"
        return "BSD-3-Clause" if "to endorse or promote products" in plain else "BSD-2-Clause"
    if name == "ISC":
        return "ISC" if "provided that the above copyright notice" in plain else "0BSD"
    return name
