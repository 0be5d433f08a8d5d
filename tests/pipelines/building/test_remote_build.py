"""A corpus read from and built on an object store has the same files, byte for byte, as one on disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gristmill.errors import ConflictError, CorruptFileError, RemoteError, UserError
from gristmill.storage import cache
from gristmill.storage.cache import lookup
from gristmill.storage.location import FileRecord
from gristmill.storage.object_store import RemotePath
from gristmill.storage.parsing import parse_location
from gristmill.storage.remote import _store
from gristmill.storage.store import read_json, write_json
from pipelines.__main__ import main
from pipelines.building.build import plan_and_build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import Located, open_corpus
from pipelines.contracts.manifest import StepManifest, StepOutput, load_corpus
from pipelines.contracts.shard_set import open_shard
from pipelines.planning.corpus import CorpusConfig, load_corpus_config
from pipelines.planning.inventory import take_inventory
from tokenizer.vocabulary.definition import read_definition
from trainers.data.job_interface import verified_tokenizer
from trainers.data.packed_corpus import open_corpus as open_for_training


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    assert not list((tmp_path / "cache").glob("*.tmp"))


def prefix(s3, tmp_path: Path) -> RemotePath:
    return parse_location(f"s3://bucket/{tmp_path.name}", s3.remote)


def tree(root: Path | RemotePath, s3=None) -> dict[str, bytes]:
    if isinstance(root, RemotePath):
        top = root.url.removeprefix("s3://")
        files = {name.removeprefix(f"{top}/"): s3.store.cat_file(name) for name in s3.store.find(top)}
    else:
        files = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    skipped = ("run.json", ".checksums.json", "report.html")
    return {name: data for name, data in files.items() if name.rpartition("/")[2] not in skipped}


def run(config: CorpusConfig, lines: list[str] | None = None) -> None:
    inventories = take_inventory(config.sources, config.place)
    plan_and_build(config, inventories, LocalCluster(), (lines if lines is not None else []).append)


def remote_config(corpus_file: Path, raw_text: Path, root: RemotePath, s3) -> CorpusConfig:
    s3.store.put(str(raw_text), f"{root.url}/raw", recursive=True)
    data = yaml.safe_load(corpus_file.read_text())
    remote = {"endpoint": s3.remote.endpoint, "allow_private": True}
    data |= {"output": f"{root.url}/out", "remote": remote}
    for source in data["sources"]:
        source |= {"root": source["root"].replace(str(raw_text), f"{root.url}/raw"), "remote": remote}
    path = corpus_file.with_name("remote.yaml")
    path.write_text(yaml.safe_dump(data))
    return load_corpus_config(path)


@pytest.mark.long
def test_files_of_a_store_are_whole_or_absent(s3, tmp_path: Path, own_cache: Path) -> None:
    root = prefix(s3, tmp_path)
    assert not root.exists()
    record = root.write_file("a/b.bin", b"content")
    assert record == root.record("a/b.bin")
    assert (root / "a").exists()
    assert [path.name for path in root.iterdir()] == ["a"]
    assert [str(path) for path in root.glob("a*/b.bin")] == [f"{root}/a/b.bin"]
    assert (root / "a" / "b.bin").stat().st_size == 7

    def fail(sink) -> None:
        sink.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left on device; make room"):
        (root / "a" / "b.bin").write_atomic(fail)
    assert (root / "a" / "b.bin").read_bytes() == b"content"
    write_json(root / "v.json", {"n": 1})
    assert read_json(root / "v.json")["n"] == 1
    with pytest.raises(FileNotFoundError):
        read_json(root / "w.json")
    output = StepOutput(root, "a")
    output.commit("unit", {"work/x": b"x"}, {})
    assert output.receipt("unit").files[0].bytes == 1
    named = output.write("files/named", b"n")
    output.finish(StepManifest("a", None, "", {}, {}, files=(named,)))
    assert [path.name for path in (root / "a").iterdir()] == ["files"]


def test_remote_files_are_verified(s3, tmp_path: Path, own_cache: Path) -> None:
    root = prefix(s3, tmp_path)
    record = root.write_file("f", b"12345")
    assert root.verify(record).read_bytes() == b"12345"  # the copy that was kept when it was written
    root.verify(record).write_bytes(b"x")  # a damaged copy is fetched again
    assert root.verify(record).read_bytes() == b"12345"
    lookup(record.xxh3_128).unlink()
    s3.store.pipe_file(f"{root.url}/f", b"12x45")
    with pytest.raises(CorruptFileError, match=r"/f: is 5 bytes, .*its manifest recorded 5 bytes"):
        root.verify(record)
    with pytest.raises(CorruptFileError, match="recorded in its manifest but missing"):
        root.verify(FileRecord("g", 1, "0"))


def test_ranges_are_read_without_the_whole(s3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = prefix(s3, tmp_path)
    for directory in (root, tmp_path):
        record = directory.write_file("ranges", b"0123456789")
        assert directory.read_ranges([(record, 4, 7), (record, 8, 20), (record, 3, 3)]) == [b"456", b"89", b""]
    lookup(record.xxh3_128).unlink()  # nothing is kept: the store is asked
    assert root.read_ranges([(record, 7, 10), (record, 8, 20), (record, 3, 3)]) == [b"789", b"89", b""]
    assert lookup(record.xxh3_128) is None
    with pytest.raises(FileNotFoundError):
        root.read_ranges([(record, 0, 1), (FileRecord("no", 5, "0"), 0, 1)])


@pytest.mark.parametrize(
    "read",
    [lambda root, record: root.verify(record).read_bytes(), lambda root, record: root.read_ranges([(record, 0, 5)])[0]],
)
def test_a_copy_that_another_process_evicts_is_not_needed(s3, tmp_path, own_cache, monkeypatch, read) -> None:
    root = prefix(s3, tmp_path)
    record = root.write_file("f", b"12345")
    evicted = []

    def look_up(checksum: str):
        copy = lookup(checksum)
        if not evicted:
            evicted.append(copy)
            copy.unlink()
        return copy

    monkeypatch.setattr(cache, "lookup", look_up)
    assert read(root, record) == b"12345"
    assert len(evicted) == 1


def test_the_cache_is_bounded(s3, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRISTMILL_CACHE_BYTES", "5000")
    monkeypatch.setattr(cache, "_IN_USE_SECONDS", -1)
    root = prefix(s3, tmp_path)
    records = [root.write_file(str(number), bytes([number]) * 1000) for number in range(10)]
    held = [number for number, record in enumerate(records) if lookup(record.xxh3_128)]
    assert held == [5, 6, 7, 8, 9]
    assert root.verify(records[0]).read_bytes() == bytes(1000)
    assert [number for number, record in enumerate(records) if lookup(record.xxh3_128)] == [0, 6, 7, 8, 9]


def test_a_store_that_fails_is_tried_again(s3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = prefix(s3, tmp_path)

    def fail(*arguments, **options):
        raise TimeoutError

    with monkeypatch.context() as patch:
        patch.setattr(_store("s3", s3.remote), "put_file", fail)  # the one in use: few are remembered
        with pytest.raises(RemoteError, match=f"{root}/f: TimeoutError"):
            root.write_file("f", b"x")
    assert not root.exists()
    with pytest.raises(UserError, match="f: failed 3 times: s3://x: TimeoutError; run the same command when"):
        list(LocalCluster().map(_time_out, ["f"], str))


def _time_out(item: str) -> None:
    raise RemoteError("s3://x: TimeoutError")


@pytest.mark.long
def test_a_small_build_on_s3(s3, corpus_file: Path, raw_text: Path, tmp_path: Path) -> None:
    data = yaml.safe_load(corpus_file.read_text()) | {"steps": [{"text_hash": {}}]}
    corpus_file.write_text(yaml.safe_dump(data))
    root = prefix(s3, tmp_path)
    run(load_corpus_config(corpus_file))
    config = remote_config(corpus_file, raw_text, root, s3)
    run(config)
    assert tree(config.place, s3) == tree(tmp_path / "out")


@pytest.mark.slow
def test_a_build_on_s3_is_the_build_on_disk(
    s3, corpus_file: Path, raw_text: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    root = prefix(s3, tmp_path)
    run(load_corpus_config(corpus_file))
    config = remote_config(corpus_file, raw_text, root, s3)
    here, lines = tmp_path / "out", []

    class Killed(BaseException):
        pass

    written = []

    def dying(url, remote, local):
        written.append(url)
        if len(written) == 25:
            raise Killed
        put_url(url, remote, local)

    put_url = cache.put_url
    with monkeypatch.context() as patch:
        patch.setattr(cache, "put_url", dying)
        with pytest.raises(Killed):
            run(config)
    assert not (config.place / "manifest.json").exists()
    run(config)
    assert tree(config.place, s3) == tree(here)

    run(config, lines)
    assert "already built" in lines[0]
    for path in own_cache.glob("*/*"):  # another machine
        path.unlink()
    corpus = open_corpus(config.place)
    found = corpus.find("web/0.jsonl#0")
    assert isinstance(found, Located)
    assert found.part.table(("text",))["text"][found.row].as_py()
    shard = next(iter(load_corpus(config.place).shard_sets.values())).shards[0]
    assert len(open_shard(config.place, shard.file).tokens) == shard.tokens

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.remote.endpoint)
    arguments = ["inspect", str(config.place), "--doc", "web/0.jsonl#0"]
    assert main(arguments) == 2
    assert "which is not public" in capsys.readouterr().err
    monkeypatch.setenv("GRISTMILL_ALLOW_PRIVATE", "1")
    assert main(arguments) == 0
    assert "web/0.jsonl#0" in capsys.readouterr().out
    assert read_definition(str(verified_tokenizer(open_for_training((str(config.place),), None))))
    assert main(["plan", str(corpus_file.with_name("remote.yaml"))]) == 0
    other = CorpusConfig("other", config.output, config.sources, config.steps, config.remote)
    with pytest.raises(ConflictError, match="belongs to the corpus 'small'"):
        run(other)
