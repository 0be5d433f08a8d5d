"""A page worker that fails in the way its page asks for. test_page_process.py runs it in place of
pipelines.reading.web.page_worker.
"""

import json
import os
import sys
from pathlib import Path

from pipelines.reading.web.extraction import PageLimits, page_text
from pipelines.reading.web.page_worker import serve


def parse(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    if "GRISTMILL_TEST_IMPORT" in os.environ:
        raise ImportError("a module is now a project of its own.\nInstall it.")
    if b"CRASH ONCE" in data and not Path(data.decode().split("|")[1]).exists():
        Path(data.decode().split("|")[1]).touch()
        os.abort()
    if b"CRASH NOW" in data:
        os.abort()
    if b"SPIN" in data:
        while True:
            pass
    if b"GROW" in data:
        held = []
        while True:
            held.append(b"x" * (64 << 20))
    if b"RAISE" in data:
        raise RecursionError("with text of the page")
    if b"PRINT" in data:
        os.write(1, b"a library's notice")
        print("another", flush=True)
    return page_text(data, label, limits)


def main() -> None:
    serve(PageLimits(**json.loads(sys.argv[1])), int(sys.argv[2]), parse)
