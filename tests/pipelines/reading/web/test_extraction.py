"""trafilatura's caches do not influence any text, and are cleared after a number of characters; and
trafilatura's rules alone.
"""

import pytest
import trafilatura
import trafilatura.meta
from trafilatura import core

from pipelines.reading.web.extraction import _Caches, extract_with_trafilatura, rules_alone

SENTENCES = [
    "The harbour was rebuilt after the storm of 1953, which had destroyed most of its wooden piers.",
    "Fishing boats leave before sunrise and return in the afternoon, when the market opens.",
    "A small museum shows how nets were made, and who made them.",
    "Visitors come by train, since the road along the coast is closed in winter.",
]


def page(number):
    order = SENTENCES[number % 4 :] + SENTENCES[: number % 4]
    body = "".join(f"<p>{sentence} ({number % 3})</p>" for sentence in order)
    return f"<html><body><nav><a href='/'>Home</a></nav><article><h1>Harbour {number % 2}</h1>{body}</article></body></html>"


@pytest.mark.long
def test_texts_are_equal_with_warm_and_with_cleared_caches(monkeypatch):
    pages = [page(number) for number in range(12)]
    trafilatura.meta.reset_caches()
    warm = [extract_with_trafilatura(html) for html in [*pages, *pages]]
    cold = []
    for html in pages:
        trafilatura.meta.reset_caches()
        cold.append(extract_with_trafilatura(html))
    assert warm == [*cold, *cold]
    assert all(SENTENCES[0] in text for text in cold)


def test_caches_are_cleared_after_a_number_of_characters(monkeypatch):
    cleared = []
    monkeypatch.setattr(trafilatura.meta, "reset_caches", lambda: cleared.append(1))
    caches = _Caches()
    monkeypatch.setattr(caches, "limit", 100)
    counts = []
    for size in (60, 40, 1, 99, 1, 500, 0):
        caches.make_room(size)
        counts.append(len(cleared))
    assert counts == [0, 0, 1, 1, 2, 3, 4]


def test_rules_alone_are_the_fast_ones_without_a_second_run_with_more_recall(monkeypatch):
    """trafilatura runs html2txt on the whole page to decide on a second extraction. With `rules_alone` it
    never does, and gives the text of trafilatura with ESCALATION_MAX_LENGTH = 0.
    """
    measured = []
    whole = core.html2txt
    monkeypatch.setattr(core, "html2txt", lambda tree: measured.append(tree) or whole(tree))
    pages = [page(number) for number in range(4)]
    for html in pages:
        trafilatura.extract(html, fast=True, include_comments=False)
    assert len(measured) == len(pages)
    found = [extract_with_trafilatura(html, options=rules_alone("text", False)) for html in pages]
    assert len(measured) == len(pages)
    monkeypatch.setattr(core, "ESCALATION_MAX_LENGTH", 0)
    assert found == [trafilatura.extract(html, fast=True, include_comments=False) for html in pages]
    assert all(SENTENCES[0] in text for text in found)
