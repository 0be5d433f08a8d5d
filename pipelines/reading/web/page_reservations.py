"""Reservations of rights that a page declares, recorded without judging what they mean.

There are three conventions: robots directives in HTML (`<meta name="robots" content="noai">`), robots
directives in HTTP (`X-Robots-Tag`), and the TDM Reservation Protocol in either (TDMRep, W3C Community Group,
2024).
"""

import re
from typing import Any

VERSION = "1"
"""Documents made from pages depend on this version. Increase it when a code change alters what is recorded."""
FIELDS = ("robots", "x_robots_tag", "tdm_reservation", "tdm_policy")
"""The fields of `meta`. Each is a list of declared texts, with those from HTTP before those from the page."""
_HEADERS = {"x-robots-tag": "x_robots_tag", "tdm-reservation": "tdm_reservation", "tdm-policy": "tdm_policy"}
_METAS = {"robots": "robots", "tdm-reservation": "tdm_reservation", "tdm-policy": "tdm_policy"}
_HEADER = re.compile(rb"^(x-robots-tag|tdm-reservation|tdm-policy)[ \t]*:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_VALUES, _CHARACTERS = 20, 500  # recorded of each field, and of each value: more is an attack

Reservations = dict[str, list[str]]


def header_reservations(lines: bytes) -> Reservations:
    """Return the reservations of rights that HTTP header lines declare; a header may be repeated."""
    found: Reservations = {}
    for name, value in _HEADER.findall(lines):
        _add(found, _HEADERS[name.decode().lower()], value.decode("latin-1"))
    return found


def page_reservations(tree: Any) -> Reservations:
    """Return the reservations of rights that a page's meta elements declare. `tree` is resiliparse's
    HTMLTree.
    """
    found: Reservations = {}
    # A slice, because iterating over resiliparse's collections takes quadratic time.
    for element in tree.document.query_selector_all("meta[name][content]")[:]:
        field = _METAS.get(element.getattr("name").strip().lower())
        if field is not None:
            _add(found, field, element.getattr("content"))
    return found


def _add(found: Reservations, field: str, value: str) -> None:
    values = found.setdefault(field, [])
    if len(values) < _VALUES:
        values.append(" ".join(value[:_CHARACTERS].split()))
