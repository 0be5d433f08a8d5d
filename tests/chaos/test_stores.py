"""Failing object stores and web servers: errors, broken connections, and responses that are too short or too slow."""

import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.chaos.harness.disks import disk, enlarge
from tests.chaos.harness.failing_store import Plan, Proxy, proxy, url_of
from tests.chaos.harness.outcome import Outcome, build_outcome
from tests.chaos.harness.small_corpus import Small, one_line, reference, write_config

Injected = Callable[[str, str, Outcome, float], None]
GROUP = "Storage"


class Store(NamedTuple):
    """The tests' object store behind a proxy that injects failures."""

    proxy: Proxy
    bucket: Any
    remote: dict[str, Any]
    options: dict[str, Any]


@pytest.fixture
def store(s3, tmp_path: Path) -> Iterator[Store]:
    secrets = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}
    # The library below s3fs tries again, too, which takes long where the store does not come back.
    variables = secrets | {"AWS_MAX_ATTEMPTS": "1", "GRISTMILL_CACHE": str(tmp_path / "cache")}
    with proxy(s3.remote.endpoint) as found:
        remote = {"endpoint": url_of(found), "allow_private": True}
        yield Store(found, s3.store, remote, {"variables": variables, "seconds": 5})


NAMES = {
    "503": "503 SlowDown", "500": "500", "reset": "connections are reset", "truncated": "answers break off",
    "short": "answers are too short", "slow": "a byte a second",
}  # fmt: skip
PASSING = [("503", 3), ("500", 1), ("reset", 1), ("truncated", 1), ("short", 1)]
STAYING = [
    ("503", "answered HTTP 503"),
    ("slow", "no answer within"),
    ("reset", r"\w*Error"),
    ("truncated", r"\w*Error"),
]


@pytest.fixture
def sources(small: Small, store: Store, tmp_path: Path) -> Small:
    root = f"s3://bucket/{tmp_path.name}"
    store.bucket.put(str(small.raw), root, recursive=True)
    return replace(small, config=write_config(tmp_path / "own.yaml", root, remote=store.remote))


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "count"), PASSING)
def test_a_source_on_a_store_that_fails_for_a_while(
    sources: Small, store: Store, injected: Injected, tmp_path: Path, kind: str, count: int
) -> None:
    store.proxy.plan = plan = Plan(kind, "lines/1.jsonl", ("GET",), skip=1, count=count)
    done = sources.build(tmp_path / "out", **store.options)
    assert (done.status, plan.failed) == (0, count), (plan.failed, done.errors)
    name = f"source on an object store: {NAMES[kind]}, then it answers"
    injected(GROUP, name, build_outcome(sources.reference, tmp_path / "out"), done.seconds)


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "said"), STAYING)
def test_a_source_on_a_store_that_fails(
    sources: Small, store: Store, injected: Injected, tmp_path: Path, kind: str, said: str
) -> None:
    """The store fails while the source is read; a slow store fails during planning."""
    store.proxy.plan = Plan(kind, "rows/rows.parquet", ("GET",), skip=int(kind != "slow"))
    one_line(sources.build(tmp_path / "out", **store.options), rf"rows\.parquet: {said}", "same command")
    store.proxy.plan = Plan()
    outcome, seconds = sources.finished(tmp_path / "out", **store.options)
    injected(GROUP, f"source on an object store: {NAMES[kind]}", outcome, seconds)


@pytest.fixture
def output(small: Small, store: Store, tmp_path: Path) -> Small:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(small.config.read_text()) | {"remote": store.remote}))
    return replace(small, config=path)


def stored(small: Small, store: Store, out: str, copy: Path) -> Outcome:
    store.bucket.get(out.removeprefix("s3://"), str(copy), recursive=True)
    return build_outcome(small.reference, copy)


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "method", "count"), [("503", "PUT", 3), ("reset", "PUT", 1), ("short", "GET", 1)])
def test_an_output_on_a_store_that_fails_for_a_while(
    output: Small, store: Store, injected: Injected, tmp_path: Path, kind: str, method: str, count: int
) -> None:
    out = f"s3://bucket/{tmp_path.name}/out"
    store.proxy.plan = plan = Plan(kind, "/out/", (method,), skip=12, count=count)
    done = output.build(out, **store.options)
    assert (done.status, plan.failed) == (0, count), (plan.failed, done.errors)
    outcome = stored(output, store, out, tmp_path / "copy")
    injected(GROUP, f"output on an object store: {NAMES[kind]}, then it answers", outcome, done.seconds)


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("kind", "method", "said"), [("503", "PUT", "answered HTTP 503"), ("slow", "GET", "no answer within")]
)
def test_an_output_on_a_store_that_fails(
    output: Small, store: Store, injected: Injected, tmp_path: Path, kind: str, method: str, said: str
) -> None:
    out = f"s3://bucket/{tmp_path.name}/out"
    store.proxy.plan = Plan(kind, "/out/", (method,), skip=12)
    one_line(output.build(out, **store.options), f"{out}/.*: {said}", "same command")
    store.proxy.plan = Plan()
    done = output.build(out, **store.options)
    assert done.status == 0, done.errors
    outcome = stored(output, store, out, tmp_path / "copy")
    injected(GROUP, f"output on an object store: {NAMES[kind]}", outcome, done.seconds)


@pytest.mark.chaos
def test_a_cache_that_gets_full(output: Small, store: Store, injected: Injected, tmp_path: Path) -> None:
    out = f"s3://bucket/{tmp_path.name}/out"
    with disk(tmp_path / "disk", 16 << 12) as full:
        variables = store.options["variables"] | {"GRISTMILL_CACHE": str(full)}
        one_line(output.build(out, variables=variables), f"{full}/.*: No space left on device", "GRISTMILL_CACHE")
        enlarge(full, 1 << 26)
        done = output.build(out, variables=variables)
        assert done.status == 0, done.errors
        outcome = stored(output, store, out, tmp_path / "copy")
        injected(GROUP, "disk of the cache full (ENOSPC)", outcome, done.seconds)


@pytest.mark.long
def test_a_source_on_the_web_that_fails(small: Small, injected: Injected, thorough: bool, tmp_path: Path) -> None:
    files = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(small.raw)))
    threading.Thread(target=files.serve_forever, daemon=True).start()
    own, out = replace(small, config=tmp_path / "own.yaml"), tmp_path / "out"
    source = {"name": "web", "format": "jsonl", "licence": "CC0-1.0", "part_bytes": 6000}

    def configure(root: str, **more: Any) -> None:
        own.config.write_text(
            yaml.safe_dump({"name": "small", "output": "unset", "sources": [source | {"root": root} | more],
                            "steps": [{"text_hash": {}}]})
        )  # fmt: skip

    configure(str(small.raw / "lines" / "1.jsonl"))
    own = replace(own, reference=reference(small.server, own.config, tmp_path / "reference"))
    with proxy(url_of(files)) as server:
        configure(f"{url_of(server)}/lines/1.jsonl", remote={"schemes": ["http"], "allow_private": True})
        for kind in ("503", "reset", "truncated") if thorough else ("503",):
            server.plan = plan = Plan(kind, "1.jsonl", skip=0 if thorough else 3, count=2)
            done = own.build(out, seconds=5)
            assert (done.status, plan.failed) == (0, 2), (kind, done.errors)
            injected(GROUP, f"source on the web: {NAMES[kind]}, then it answers",
                     build_outcome(own.reference, out), done.seconds)  # fmt: skip
            shutil.rmtree(out)
        for kind, said in (("503", "answered HTTP 503"), ("slow", "no answer within")) if thorough else ():
            server.plan = Plan(kind, "1.jsonl", ("GET",))
            one_line(own.build(out, seconds=5), rf"1\.jsonl: {said}", "same command")
            server.plan = Plan()
            injected(GROUP, f"source on the web: {NAMES[kind]}", *own.finished(out))
            shutil.rmtree(out)
    files.shutdown()
    files.server_close()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass
