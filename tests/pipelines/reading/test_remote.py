"""Sources behind URLs: an S3 server on loopback gives the same documents as the disk, and forbidden URLs are
refused.
"""

import gzip
import http.server
import io
import json
import sys
import threading
import traceback
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError, RemoteError, SourceError, UserError
from gristmill.storage import remote as module
from gristmill.storage.remote import Facts, Remote, is_public, list_urls, open_url, stat_url
from pipelines.planning.inventory import take_inventory
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.files import has_changed
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source


def put(s3, name: str, data: bytes) -> None:
    s3.store.pipe_file(f"bucket/{name}", data)


def rows(source: Source) -> list[tuple]:
    parts = list(read_documents(source, list_files(source), 1 << 20))
    found = [row for part in parts for row in part.documents.drop(["source"]).to_pylist()]
    return [tuple(row.values()) for row in found] + [tuple(r.values()) for p in parts for r in p.quarantine.to_pylist()]


@pytest.mark.long
def test_every_format_is_read_as_from_the_disk(s3, tmp_path: Path) -> None:
    table = pa.table({"text": ["one", "two"], "n": [1, 2]})
    parquet, arrow, archive = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet)
    with pa.ipc.new_file(arrow, table.schema) as writer:
        writer.write_table(table)
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr("x/a.jsonl", '{"text": "inside"}\nbroken\n')
    files = {
        "jsonl/a.jsonl.gz": gzip.compress(b'{"text": "packed"}\n', mtime=0),
        "jsonl/sub/b.zip": archive.getvalue(),
        "parquet/a.parquet": parquet.getvalue(),
        "arrow/a.arrow": arrow.getvalue(),
        "text/a.txt": b"text" * 100_000,
        "text/.hidden": b"x",
    }
    for name, data in files.items():
        put(s3, f"in/{name}", data)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    for kind in ("jsonl", "parquet", "arrow", "text"):
        local = Source(name="s", root=str(tmp_path / kind), format=kind)
        far = Source(name="s", root=f"s3://bucket/in/{kind}", format=kind, remote=s3.remote)
        assert [(file.path, file.size) for file in list_files(far)] == [(f.path, f.size) for f in list_files(local)]
        assert rows(far) == rows(local)
        found, expected = (take_inventory([source], tmp_path / "out")["s"] for source in (far, local))
        assert (found.digest, found.checksums) == (expected.digest, expected.checksums)
    [file] = list_files(Source(name="s", root="s3://bucket/in/text/a.txt", format="text", remote=s3.remote))
    assert (file.path, file.location) == ("a.txt", "s3://bucket/in/text/a.txt")


def test_keys_with_an_empty_name_are_read(s3) -> None:
    for key in ("empty/d//b.txt", "empty/d/b.txt"):
        s3.store.call_s3("put_object", Bucket="bucket", Key=key, Body=key.encode())
    source = Source(name="s", root="s3://bucket/empty", format="text", remote=s3.remote)
    assert [file.path for file in list_files(source)] == ["d//b.txt", "d/b.txt"]
    assert [row[1] for row in rows(source)] == ["empty/d//b.txt", "empty/d/b.txt"]
    assert [file.path for file in list_files(replace(source, include=("d/*.txt",)))] == ["d/b.txt"]
    with pytest.raises(SourceError):
        list_files(replace(source, exclude=("d/**",)))


def test_a_file_that_changes_is_noticed(s3, tmp_path: Path) -> None:
    put(s3, "changing/a.txt", b"before")
    source = Source(name="s", root="s3://bucket/changing", format="text", remote=s3.remote)
    first = take_inventory([source], tmp_path)["s"]
    assert not has_changed(first.files[0], first.checksums[0])
    put(s3, "changing/a.txt", b"after!")
    assert has_changed(first.files[0], first.checksums[0])
    assert take_inventory([source], tmp_path)["s"].digest != first.digest
    s3.store.rm("bucket/changing/a.txt")
    assert has_changed(first.files[0], first.checksums[0])
    with pytest.raises(SourceError, match="there is no file at 's3://bucket/changing'"):
        list_files(source)


def test_a_listing_may_be_the_identity(s3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(s3, "listed/a.txt", b"content")
    source = Source(name="s", root="s3://bucket/listed", format="text", remote=s3.remote, identity="listing")
    monkeypatch.setattr(module, "open_url", None)  # nothing is fetched
    first = take_inventory([source], tmp_path)["s"].digest
    assert take_inventory([source], tmp_path)["s"].digest == first
    put(s3, "listed/a.txt", b"CONTENT")
    assert take_inventory([source], tmp_path)["s"].digest != first
    monkeypatch.undo()
    by_content, elsewhere = replace(source, identity="content"), tmp_path / "elsewhere"
    assert take_inventory([by_content], tmp_path)["s"].digest == take_inventory([by_content], elsewhere)["s"].digest
    with pytest.raises(ValueError, match="identity: got 'listing', which is for files behind a URL"):
        Source(name="s", root=".", format="text", identity="listing").check()


def test_datasets_saved_to_disk(s3, tmp_path: Path) -> None:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema([("text", pa.string())])) as writer:
        writer.write_table(pa.table({"text": ["row"]}))
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    state = json.dumps({"_data_files": [{"filename": name} for name in names], "_split": "train"}).encode()
    for split in ("train", "test"):
        files = dict.fromkeys([*names, "cache-1.arrow"], sink.getvalue()) | {
            "state.json": state,
            "dataset_info.json": b"{}",
        }
        for name, data in files.items():
            put(s3, f"saved/{split}/{name}", data)
            (tmp_path / "saved" / split).mkdir(parents=True, exist_ok=True)
            (tmp_path / "saved" / split / name).write_bytes(data)
    put(s3, "saved/dataset_dict.json", b'{"splits": ["train", "test"]}')
    local = Source(name="s", root=str(tmp_path / "saved"), format="hf_dataset")
    far = Source(name="s", root="s3://bucket/saved", format="hf_dataset", remote=s3.remote)
    for source in (local, far):
        paths = [file.path for file in list_files(source)]
        assert paths == [f"{split}/{name}" for split in ("test", "train") for name in names]
        assert len(rows(source)) == 4
    only = Source(name="s", root=str(tmp_path / "saved"), format="hf_dataset", include=("train/**",))
    assert len(rows(only)) == 2
    twice = json.dumps({"_data_files": [{"filename": f"{at}/{names[0]}"} for at in ("train", "test", "test")]})
    (tmp_path / "saved" / "state.json").write_text(twice)
    assert len(rows(local)) == 4  # no row is read twice, however often its file is listed
    (tmp_path / "saved" / "state.json").unlink()
    (tmp_path / "saved" / "test" / names[1]).unlink()
    with pytest.raises(SourceError, match=r"test/state.json lists 'data-00001-of-00002.arrow', which is not there"):
        list_files(local)
    (tmp_path / "saved" / "train" / "state.json").write_text('{"_data_files": [], "_indices_data_files": [{}]}')
    with pytest.raises(SourceError, match="flatten_indices"):
        list_files(only)
    with pytest.raises(SourceError, match=r"no state\.json under"):
        list_files(Source(name="s", root=str(tmp_path / "saved" / "train"), format="hf_dataset", include=("*.arrow",)))


def test_addresses_that_are_not_public_need_leave(s3, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = Remote(endpoint=s3.remote.endpoint)
    with pytest.raises(UserError, match=r"the address 127\.0\.0\.1, which is not public.*allow_private: true"):
        list_urls("s3://bucket/in", closed)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://169.254.169.254")
    module._store.cache_clear()  # it may hold the endpoint of another test
    with pytest.raises(UserError, match=r"169\.254\.169\.254, which is not public"):
        list_urls("s3://bucket/in", Remote())
    with pytest.raises(UserError, match=r"the host 'nowhere\.invalid' has no address"):
        list_urls("https://nowhere.invalid/x", Remote(schemes=("https",)))


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True), ("10.1.2.3", False), ("127.0.0.1", False), ("169.254.169.254", False), ("100.64.0.1", False),
        ("0.0.0.0", False), ("224.0.0.1", False), ("::1", False), ("fe80::1%eth0", False), ("fd00::1", False),
        ("2606:4700::1111", True), ("::ffff:10.0.0.1", False), ("64:ff9b::a9fe:a9fe", False), ("64:ff9b::808:808", True),
        ("2002:a9fe:a9fe::", False), ("64:ff9b:1::a9fe:a9fe", False), ("::169.254.169.254", False),
    ],
)  # fmt: skip
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) == public


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"root": "https://me:hunter2@data.example/x"}, "root: the URL holds a user name or password"),
        ({"root": "https://hunter2@data.example/x"}, "root: the URL holds a user name or password"),
        ({"root": "s3://me:hunter2@bucket/x"}, "root: the URL holds a user name or password"),
        ({"root": "s3://hunter2@bucket/x"}, "root: the URL holds a user name or password"),
        ({"root": ".", "origin": "the dump at https://me:hunter2@data.example"}, "origin: holds a password"),
        ({"root": ".", "origin": "https://data.example/a?x=1&sig=hunter2"}, "origin: holds a password, key or signature"),
        ({"root": "https://data.example:999999/x"}, "root: not a valid URL"),
        ({"root": ".", "remote": {"endpoint": "https://me:hunter2@data.example"}}, "remote.endpoint: the URL holds"),
        ({"root": ".", "remote": {"endpoint": "http://[::1"}}, "remote.endpoint: not a valid URL"),
    ],
)  # fmt: skip
def test_urls_that_a_corpus_file_must_not_hold(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(Source, {"name": "s", "format": "text", **fields}, "x.yaml")
    assert "hunter2" not in str(caught.value)
    for root in ("hf://datasets/me/set@main/data", "hf://set@main/data", "s3://bucket/a@b:c", "a@b"):
        parse(Source, {"name": "s", "format": "text", "root": root}, "x.yaml")
    parse(
        Source, {"name": "s", "format": "text", "root": ".", "origin": "https://data.example/?id=3: a dump"}, "x.yaml"
    )


def test_schemes_are_allowed_one_by_one() -> None:
    with pytest.raises(
        UserError, match=r"URLs of the scheme 'https' may not be opened; `remote.schemes` allows s3, gs, hf"
    ):
        open_url("https://example.org/a", Remote())
    for url in ("file:///etc/passwd", "memory://a", "ssh://host/a", "github://a:b@/c"):
        with pytest.raises(UserError, match="may not be opened"):
            open_url(url, Remote())
    with pytest.raises(ValueError, match="schemes: got 'file', expected some of s3, gs, hf, http, https"):
        Remote(schemes=("file",)).check()
    with pytest.raises(ValueError, match="endpoint: got 'host:9000'"):
        Remote(endpoint="host:9000").check()


def test_the_corpus_file_says_what_may_be_opened() -> None:
    fields = {"name": "s", "root": "https://example.org/a.jsonl", "format": "jsonl"}
    source = parse(Source, {**fields, "remote": {"schemes": ["https"]}}, "x.yaml")
    assert source.remote == Remote(schemes=("https",))
    with pytest.raises(ConfigError, match=r"x\.yaml: remote\.schemes: got 'ftp', expected some of s3"):
        parse(Source, {**fields, "remote": {"schemes": ["ftp"]}}, "x.yaml")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    module._store.cache_clear()
    with pytest.raises(UserError, match=r"s3:// URLs need the module s3fs, .* run: pip install .*'\.\[s3\]'"):
        list_urls("s3://bucket/in", Remote())
    module._store.cache_clear()


def test_a_store_that_fails_is_no_damage(s3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lost connection fails the task, which is then retried; the file is not reported as broken."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["one", "two"]}), sink)
    put(s3, "failing/a.parquet", sink.getvalue())
    source = Source(name="s", root="s3://bucket/failing", format="parquet", remote=s3.remote)
    files = list_files(source)

    def fail(self, buffer):
        raise TimeoutError("no answer")

    monkeypatch.setattr("fsspec.spec.AbstractBufferedFile.read", fail)
    with pytest.raises(RemoteError, match=r"s3://bucket/failing/a\.parquet: TimeoutError"):
        list(read_documents(source, files, 1 << 20))


SIGNATURE = "X-Amz-Date=1&X-Amz-Signature=swordfish&path=a/b.txt"


def parquet_bytes() -> bytes:
    pq.write_table(pa.table({"text": ["hello"]}), file := io.BytesIO())
    return file.getvalue()


def zip_bytes() -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr("a.txt", "hello")
    return file.getvalue()


WHOLE = {"/whole/a.txt": b"hello", "/whole/a.parquet": parquet_bytes(), "/whole/a.zip": zip_bytes()}


class Pages(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(True)

    def do_HEAD(self) -> None:
        self.answer(False)

    def answer(self, body: bool) -> None:
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.2:{self.server.server_address[1]}/a.txt")
            self.end_headers()
            return
        name, _, query = self.path.partition("?")
        status = {"/gone": 404, "/broken": 500}.get(name, 200)
        self.send_response(403 if name == "/signed.txt" and query != SIGNATURE else status)
        content = WHOLE.get(name, b"hello")
        if name in WHOLE:
            self.send_header("Accept-Ranges", "none")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"1"')
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def pages() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.long
def test_http_and_its_redirects(pages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{pages}"
    open_to_all = Remote(schemes=("http",), allow_private=True)
    assert list_urls(f"{url}/a.txt", open_to_all) == {"": Facts(5, '"1"')}
    with open_url(f"{url}/a.txt", open_to_all) as file:
        assert file.read() == b"hello"
    source = Source(name="s", root=f"{url}/a.txt", format="text", remote=open_to_all)
    assert [row[1] for row in rows(source)] == ["hello"]
    assert stat_url(f"{url}/away", open_to_all) == Facts(5, '"1"')
    module._store.cache_clear()
    monkeypatch.setattr(module, "is_public", lambda address: address == "127.0.0.1")
    public = Remote(schemes=("http",))
    assert stat_url(f"{url}/a.txt", public) == Facts(5, '"1"')
    assert stat_url(f"{url}/gone", public) is None
    with pytest.raises(RemoteError, match="ClientConnectorError"):  # where the server sends us is not public
        stat_url(f"{url}/away", public)
    module._store.cache_clear()


@pytest.mark.long
def test_a_server_without_ranges(pages: int) -> None:
    """Formats that are read from one end to the other work; for the others, the error says why they do not."""
    remote = Remote(schemes=("http",), allow_private=True)
    with open_url(f"http://127.0.0.1:{pages}/whole/a.txt", remote) as file:
        assert not file.seekable()
    source = Source(name="s", root=f"http://127.0.0.1:{pages}/whole/a.txt", format="text", remote=remote)
    assert [row[1] for row in rows(source)] == ["hello"]
    for name, kind in (("a.parquet", "parquet"), ("a.zip", "text")):
        with pytest.raises(UserError, match="does not answer range requests, which this format needs; download"):
            rows(replace(source, root=f"http://127.0.0.1:{pages}/whole/{name}", format=kind))


@pytest.mark.long
def test_the_query_of_a_url_is_sent_and_never_shown(pages: int, tmp_path: Path) -> None:
    remote = Remote(schemes=("http",), allow_private=True)

    def source(place: str, **fields) -> Source:
        return Source(name="s", root=f"http://127.0.0.1:{pages}{place}", format="text", remote=remote, **fields)

    signed = source(f"/data/../signed.txt?{SIGNATURE}")
    [file] = list_files(signed)
    assert file.path == "signed.txt"
    [(identifier, text, *_)] = rows(signed)
    assert (text, identifier) == ("hello", rows(source("/other/signed.txt"))[0][0])  # signed anew, it keeps its ids
    assert [file.path for file in list_files(source("/?id=3#part"))] == [f"127.0.0.1:{pages}"]
    inventory = take_inventory([signed], tmp_path)["s"]
    assert not has_changed(inventory.files[0], inventory.checksums[0])
    for place, fields in (
        ("/gone?sig=swordfish", {}),
        ("/signed.txt?sig=swordfish", {}),
        ("/broken?sig=swordfish", {}),
        ("/a.txt?sig=swordfish", {"include": ("*.json",)}),
        ("/a.txt?sig=swordfish", {"exclude": ("**",)}),
    ):
        with pytest.raises((SourceError, RemoteError)) as caught:
            list_files(source(place, **fields))
        assert place.partition("?")[0] in str(caught.value)
        assert "swordfish" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(UserError, match=r"/a\.txt\?\.\.\.: the host '127\.0\.0\.1' has the address") as caught:
        open_url(f"http://127.0.0.1:{pages}/a.txt?sig=swordfish", Remote(schemes=("http",)))
    assert "swordfish" not in str(caught.value)
    with pytest.raises(ValueError, match=r"endpoint: got 'https://a\.example/\?\.\.\.'"):
        Remote(endpoint="https://a.example/?sig=swordfish").check()
