"""Reservations: what a page declares about the use of its text, such as `noai`, as columns for rules."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from pipelines.contracts.reads import Column, Input
from pipelines.contracts.stage import PartStage
from pipelines.reading.sources.record_field import load_meta
from pipelines.reading.web.page_reservations import FIELDS

RESERVATIONS = pa.schema(
    [
        ("robots", pa.string()),
        ("robots_noindex", pa.bool_()),
        ("robots_noai", pa.bool_()),
        ("tdm_reserved", pa.bool_()),
        ("tdm_policy", pa.string()),
    ]
)
_AGENT = re.compile(r"[a-z0-9_*.-]+")
_DIRECTIVE = re.compile(r"[a-z][a-z0-9_-]*")
_VALUED = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")  # directives with a value
_PAGE = {"charset", "replaced"}  # fields of `meta` that every page has


@dataclass(frozen=True)
class Reservations(PartStage):
    """Write what pages declare about the use of their text; decide nothing.

    The columns have values for documents of the formats warc and html, and for records with one of the fields
    `robots`, `x_robots_tag`, `tdm_reservation` and `tdm_policy`; otherwise they are null. For a source with
    `text_is: html_page`, the reader adds a field if the page declares it. `tdm_policy` is also null if the
    page names no policy.

    | column | definition |
    |---|---|
    | robots | directives of `<meta name="robots">` and of the header `X-Robots-Tag`: lower case, sorted, joined by spaces |
    | robots_noindex | whether one of them is `noindex` or `none` |
    | robots_noai | whether one of them is `noai` |
    | tdm_reserved | whether `tdm-reservation` is 1 in HTTP or in the page: text and data mining rights are reserved |
    | tdm_policy | the first `tdm-policy`: the URL of the terms |

    Search engines document `noindex` and `none`; DeviantArt introduced `noai` in 2022. `tdm-reservation` and
    `tdm-policy` belong to TDMRep, a protocol of the W3C community group of the same name. Declarations in a
    host's robots.txt or tdmrep.json are not read, because they are not part of its pages. To respect them,
    give the step `exclude` a list of these hosts.
    """

    version: ClassVar[int] = 2

    agents: tuple[str, ...] = ()
    """Names of crawlers for which directives in `X-Robots-Tag` (`ccbot: noindex`) also count. A directive
    without a name applies to all crawlers.
    """

    def reads(self) -> tuple[Input, ...]:
        return (Column("meta"),)

    def writes(self) -> pa.Schema:
        return RESERVATIONS

    def check(self) -> None:
        for number, agent in enumerate(self.agents):
            if not _AGENT.fullmatch(agent.lower()):
                raise ValueError(f"agents[{number}]: got {agent!r}, expected the name of a crawler, such as ccbot")

    def annotate(self, docs: pa.Table) -> pa.Table:
        agents = frozenset(agent.lower() for agent in self.agents)
        rows = [_row(load_meta(text), agents) for text in docs["meta"].to_pylist()]
        columns = zip(*rows, strict=True) if rows else ([] for _ in RESERVATIONS)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, RESERVATIONS, strict=True)]
        return pa.table(arrays, schema=RESERVATIONS)


def _row(meta: Any, agents: frozenset[str]) -> tuple[Any, ...]:
    if not isinstance(meta, dict) or not (meta.keys() >= _PAGE or any(name in meta for name in FIELDS)):
        return (None,) * len(RESERVATIONS)
    robots, header, reservation, policy = (_texts(meta.get(name)) for name in FIELDS)
    directives = set(_directives(robots, frozenset())) | set(_directives(header, agents))
    noindex = not directives.isdisjoint(("noindex", "none"))
    reserved = any(value.strip() == "1" for value in reservation)
    return " ".join(sorted(directives)), noindex, "noai" in directives, reserved, policy[0] if policy else None


def _texts(value: Any) -> list[str]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _directives(values: Iterable[str], agents: frozenset[str]) -> Iterable[str]:
    """Yield the directives that apply to all crawlers or to one of `agents`. Directives after the name of a
    crawler apply only to it, up to the next name in the same value.
    """
    for value in values:
        agent = "*"
        for token in value.lower().split(","):
            name, colon, rest = (piece.strip() for piece in token.partition(":"))
            if colon and name not in _VALUED and _AGENT.fullmatch(name):
                agent, name = name, rest.partition(":")[0].strip()
            if _DIRECTIVE.fullmatch(name) and (agent == "*" or agent in agents):
                yield name
