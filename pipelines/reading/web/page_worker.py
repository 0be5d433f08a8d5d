"""Child process that parses pages, so that a parser that crashes, hangs or exhausts memory harms nothing
else. Other raw records, such as a PDF, count as pages here. A parser, such as those in `extraction`, does the
parsing; this module implements the protocol and the limits of the process.

Protocol: `pipelines.reading.web.page_process` starts this process, writes the pages of a batch end to end
into shared memory, and sends one line of JSON: their offset, the number of the first page, and [charset
label, length] per page. Each page is answered on standard output as soon as it is done: the lengths of head
and text (two little-endian uint32), the head (JSON), the text (UTF-8). A head is {"page": its number} plus
one of:

- {"meta": fields to add to the record}, with a text. For an HTML page there are also "reservations", which are
  added to those of the record, and "fields" declared by or measured on the page, which are added where the
  record has none.
- {"reason"} for a page that is set aside, such as one over a deterministic limit or without text.
- {"failed": the type of an exception}.

The first answer belongs to no page. It is {"ready": true} once the libraries are loaded, or {"unavailable":
why not}.

The kernel limits CPU time and memory of this process (RLIMIT_CPU, renewed for each page, and RLIMIT_AS).
Nothing here looks at a clock.
"""

import json
import os
import pkgutil
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from pipelines.reading.web.extraction import PageLimits

MEMORY_EXIT = 3  # exit status for a MemoryError


def _renew_cpu_limit(seconds: int) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(usage.ru_utime + usage.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft if most == resource.RLIM_INFINITY else min(soft, most), most))


def _limit_memory(size: int) -> None:
    """Limit the address space to `size` bytes beyond what is mapped now, which includes the libraries."""
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
    limits: PageLimits, shared: int, parse: Callable[[bytes, str, PageLimits], tuple[dict[str, object], str]]
) -> None:
    """Answer the batches of pages announced on standard input until the input ends, within the `limits` of
    memory and CPU time. If a library of the parser is missing, answer that and return.

    The pages of a batch are in the shared memory whose file descriptor is `shared`. `parse` takes (bytes of a
    record, charset label, limits) and returns (head without "page", text).
    """
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))  # the memory limit of the task does not apply here
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        parse(b"<p>Libraries are loaded before memory is limited.", "", limits)
    except ImportError as error:
        _answer(out, {"unavailable": f"{type(error).__name__}: {' '.join(str(error).split())}"})
        return
    except Exception:
        pass  # the probe is a page, which is not a document of every format
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
    """Parse the command line and serve. The arguments are PageLimits as JSON, and the file descriptor of the
    shared memory.
    """
    limits = PageLimits(**json.loads(sys.argv[1]))
    serve(limits, int(sys.argv[2]), pkgutil.resolve_name(f"pipelines.reading.{limits.parser}"))
