"""The process in which pages are parsed, so that a parser that crashes, hangs or takes all memory takes nothing else along.

Started by pipelines.reading.web.extraction, which puts the pages of a batch end to end into shared memory and writes one line
of JSON: where they begin, the number of the first, and [charset label, length] of each. Each page is answered on the
standard output as soon as it is done: the lengths of head and text (two little-endian uint32), head (JSON), text (UTF-8).
A first answer without text says that the libraries are loaded, or {"unavailable": why not}. The head is
{"page": its number} and {"charset", "replaced"} with a text, {"reason"} for a page over a deterministic limit or without
text, or {"failed"} with the type of an exception.

CPU time and memory are limits of the kernel on this process (RLIMIT_CPU, renewed for each page, and RLIMIT_AS), which
no parser can outlive. Nothing here looks at a clock.
"""

import json
import os
import resource
import struct
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import IO

from pipelines.reading.web.charset import decode_page, is_undecodable

MEMORY_EXIT = 3  # exit status for a MemoryError


@dataclass(frozen=True)
class PageLimits:
    """How pages are extracted, and the limits: counts of the page's elements, CPU seconds and bytes of this process."""

    extract: str
    nodes: int
    depth: int
    cpu_seconds: int
    memory_bytes: int

    def to_json(self) -> str:
        """For the command line of the worker."""
        return json.dumps(asdict(self))


def page_text(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """(head of the answer, text) for one page."""
    from resiliparse.parse.html import HTMLTree

    html, charset, replaced = decode_page(data, label)
    tree = HTMLTree.parse(html)
    nodes = len(tree.document.get_elements_by_tag_name("*"))
    if nodes > limits.nodes:
        return {"reason": "html_nodes"}, ""
    if nodes > limits.depth and tree.document.query_selector(_deeper_than(limits.depth)) is not None:
        return {"reason": "html_depth"}, ""
    text = EXTRACTORS[limits.extract](html, tree)
    if not text or text.isspace():
        return {"reason": "no_text_extracted"}, ""
    if replaced and is_undecodable(text):
        return {"reason": "undecodable"}, ""
    return {"charset": charset, "replaced": replaced}, text


@cache
def _deeper_than(depth: int) -> str:
    """The selector of elements with more than `depth` - 1 ancestors; it looks at no more than `depth` of each element.

    Only first children are looked at: where any element lies so deep, so does the first child of its parent.
    """
    return ">".join([*("*" * depth), ":first-child"])


def by_resiliparse(html: str, tree: object = None) -> str:
    """The main content of a page, without image texts and comments: of the library's options, those with the highest F on
    the pages that trafilatura is evaluated on (benchmarks/extraction.py): 0.860, and 0.840 with its defaults.
    """
    from resiliparse.extract.html2text import extract_plain_text

    return extract_plain_text(html if tree is None else tree, main_content=True, alt_texts=False, comments=False)


def by_trafilatura(html: str, tree: object = None) -> str:
    """trafilatura with its default recall and its fallbacks, without comments; nothing is remembered between pages."""
    import trafilatura
    from trafilatura.meta import reset_caches

    text = trafilatura.extract(html, include_comments=False, include_tables=True, deduplicate=False)
    reset_caches()
    return text or ""


EXTRACTORS: dict[str, Callable[[str, object], str]] = {"resiliparse": by_resiliparse, "trafilatura": by_trafilatura}


def _renew_cpu_limit(seconds: int) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(usage.ru_utime + usage.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if most == resource.RLIM_INFINITY else min(soft, most), most))


def _limit_memory(size: int) -> None:
    """`size` bytes of addresses beyond what the libraries have mapped."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    soft = mapped + size
    resource.setrlimit(resource.RLIMIT_AS, (soft if most == resource.RLIM_INFINITY else min(soft, most), most))


def _answer(out: IO[bytes], head: dict[str, object], text: str = "") -> None:
    first, body = json.dumps(head).encode(), text.encode("utf-8", "surrogatepass")
    out.write(struct.pack("<II", len(first), len(body)) + first)
    out.write(body)
    out.flush()


def serve(
    limits: PageLimits,
    shared: int,
    parse: Callable[[bytes, str, PageLimits], tuple[dict[str, object], str]] = page_text,
) -> None:
    """Answer batches until the input ends. `parse` is a parameter for tests, which plant failures in it."""
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not stand among the answers
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # the ceiling of the task is not this process's
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        parse(b"<p>Libraries are loaded before memory is limited.", "", limits)
    except ImportError as error:
        _answer(out, {"unavailable": f"{type(error).__name__}: {' '.join(str(error).split())}"})
        return
    _limit_memory(limits.memory_bytes)
    _answer(out, {"ready": True})
    for batch in source:
        at, number, *pages = json.loads(batch)
        for page, (label, size) in enumerate(pages, number):
            _renew_cpu_limit(limits.cpu_seconds)
            try:
                data = os.pread(shared, size, at)
                at += size
                head, text = parse(data, label, limits)
                _answer(out, head | {"page": page}, text)
            except MemoryError:
                os._exit(MEMORY_EXIT)
            except Exception as error:
                _answer(out, {"failed": type(error).__name__, "page": page})


def main() -> None:
    """The command line: PageLimits as JSON, and the number of the file that holds the pages."""
    serve(PageLimits(**json.loads(sys.argv[1])), int(sys.argv[2]))
