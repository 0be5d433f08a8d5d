"""Commands on corpora in an object store: exports from it and to it, deduplication against corpora there, and refused URLs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import pipelines
from gristmill.errors import ConflictError, RemoteError
from gristmill.storage import cache
from gristmill.storage import remote as remote_module
from gristmill.storage.object_store import RemotePath
from gristmill.storage.parsing import parse_location
from gristmill.storage.store import file_checksum, read_json
from pipelines.__main__ import main
from pipelines.building.build import plan_and_build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.export.text_export import export_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from tests.pipelines.building.test_remote_build import tree

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def environment(s3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set the environment variables of a command line, with the store's endpoint. No file may be left whose
    name contains a colon, as in a URL.
    """
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.remote.endpoint)
    monkeypatch.setenv("GRISTMILL_ALLOW_PRIVATE", "1")
    monkeypatch.chdir(tmp_path)
    yield
    assert {path.name for path in tmp_path.iterdir() if ":" in path.name} == set()


def build(root: Path, name: str, output: str, s3, **dedup) -> Path:
    data = {
        "name": name, "output": output, "remote": {"endpoint": s3.remote.endpoint, "allow_private": True},
        "sources": [
            {"name": "web", "root": str(root / "raw/web"), "format": "jsonl"},
            {"name": "code", "root": str(root / "raw/code"), "format": "text", "licence": "MIT"},
        ],
        "steps": [{"text_hash": {}}, {"dedup_exact": dedup}],
    }  # fmt: skip
    path = root / f"{name}.yaml"
    path.write_text(yaml.safe_dump(data))
    config = load_corpus_config(path)
    plan_and_build(config, take_inventory(config.sources, config.place), LocalCluster(), lambda line: None)
    return path


class Corpora(NamedTuple):
    """One corpus, built on disk (`near`) and in the store (`far`); `root` holds its sources, and `file` is
    the corpus file of `far`.
    """

    root: Path
    near: Path
    far: str
    file: Path


@pytest.fixture(scope="module")
def corpora(s3, tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    root = tmp_path_factory.mktemp("commands")
    (root / "raw/web").mkdir(parents=True)
    (root / "raw/code").mkdir()
    rows = [
        json.dumps({"text": f"text {number % 4}", "url": f"https://a.example/{number}", "n": number})
        for number in range(6)
    ]
    (root / "raw/web/0.jsonl").write_text("\n".join(rows) + "\n")
    (root / "raw/code/a.py").write_text("x = 1\n")
    far = f"s3://bucket/{root.name}/far"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRISTMILL_CACHE", str(root / "cache"))
        build(root, "first", str(root / "near"), s3)
        return Corpora(root, root / "near", far, build(root, "first", far, s3))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_export_from_and_to_a_store(s3, corpora: Corpora, tmp_path: Path, kind: str, capsys) -> None:
    near, far, top = str(corpora.near), corpora.far, f"s3://bucket/{tmp_path.name}"
    for corpus, output in ((near, "a"), (far, "b"), (near, f"{top}/c"), (far, f"{top}/d")):
        assert main(["export", corpus, output, "--format", kind]) == 0
        assert "5 documents in 2 files" in capsys.readouterr().out
    whole = tree(tmp_path / "a")
    assert set(whole) >= {"README.md", "export.json"}
    assert tree(tmp_path / "b") == tree(parse_location(f"{top}/c"), s3) == tree(parse_location(f"{top}/d"), s3) == whole
    for file in read_json(parse_location(f"{top}/c") / "export.json")["files"]:
        assert file["xxh3_128"] == file_checksum(tmp_path / "a" / file["path"])
    for corpus, output, message in (
        (near, f"{top}/c", f"{top}/c: is not empty"),
        (far, f"{far}/e", "lies inside the corpus"),
        (near, f"{top}/c/export.json", "is a file, expected a directory"),
    ):
        assert main(["export", corpus, output]) == 2
        assert message in capsys.readouterr().err


def test_a_partial_export_is_not_mistaken_for_a_complete_one(s3, corpora: Corpora, tmp_path: Path, monkeypatch) -> None:
    export_corpus(corpora.near, tmp_path / "whole", "jsonl", None)
    output = parse_location(f"s3://bucket/{tmp_path.name}/e")
    put_url, written = cache.put_url, []

    def dying(url, remote, local):
        written.append(url.rpartition("/")[2])
        if len(written) == deadline:
            raise KeyboardInterrupt
        put_url(url, remote, local)

    monkeypatch.setattr(cache, "put_url", dying)
    runs = []
    for deadline in (1, 2, 3, 4, 5, 4):  # noqa: B007
        written.clear()
        with pytest.raises(KeyboardInterrupt):
            export_corpus(corpora.near, output, "jsonl", None)
        assert not (output / "export.json").exists()
        runs.append(list(written))
    begun, web, code = "unfinished.json", "00000-web.jsonl.gz", "00001-code.jsonl.gz"
    assert runs[3:] == [
        [begun, web, begun, code],
        [begun, code, begun, "README.md", "croissant.json"],
        [begun, "README.md", "croissant.json", "export.json"],
    ]
    with pytest.raises(ConflictError, match="holds another export, unfinished"):
        export_corpus(corpora.near, output, "parquet", None)
    deadline = 0
    export_corpus(corpora.near, output, "jsonl", None)
    assert tree(output, s3) == tree(tmp_path / "whole")


def test_deduplication_against_a_corpus_on_a_store(s3, corpora: Corpora, tmp_path: Path, capsys) -> None:
    verdicts, fingerprints = [], []
    for name, place in (("near", str(corpora.near)), ("far", corpora.far)):
        build(corpora.root, name, str(tmp_path / name), s3, against=[place])
        corpus = open_corpus(tmp_path / name)
        verdicts.append([part.drop().to_pylist() for part in corpus.parts()])
        fingerprints.append(corpus.manifest.steps[-2]["fingerprint"])
        assert main(["inspect", name, "--doc", "web/0.jsonl#0"]) == 0
        assert "dropped by dedup_exact" in capsys.readouterr().out
    assert verdicts[0] == verdicts[1]
    assert {rule for part in verdicts[0] for rule in part} == {"dedup_exact"}  # all of it is there already
    assert fingerprints[0] == fingerprints[1]  # wherever the other corpus lies


def test_what_a_store_cannot_do_is_refused_before_anything_is_done(
    s3, corpora: Corpora, tmp_path: Path, capsys
) -> None:
    before = tree(parse_location(corpora.far), s3)
    (tmp_path / "ids").write_text("web/0.jsonl#0\n")
    for words in (["forget", corpora.far, "--ids", "ids"], ["gc", str(corpora.file), "--delete"]):
        assert main(words) == 2
        assert "forget and gc need a local directory: copy the corpus to one" in capsys.readouterr().err
    assert tree(parse_location(corpora.far), s3) == before


def test_places_of_a_store(s3, tmp_path: Path) -> None:
    root = parse_location(f"s3://bucket/{tmp_path.name}")
    assert isinstance(root, RemotePath)
    s3.store.pipe_file(f"bucket/{tmp_path.name}/a/f", b"1")
    s3.store.pipe_file(f"bucket/{tmp_path.name}/a/fg", b"1")
    assert (root / "a" / "f").is_file()
    assert not (root / "a" / "f").is_dir()
    assert (root / "a").is_dir()
    assert not (root / "a").is_file()
    (root / "a" / "f").unlink()
    (root / "a" / "f").unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        (root / "a" / "f").unlink()
    assert [path.name for path in (root / "a").iterdir()] == ["fg"]


def test_messages_mention_that_aws_was_contacted(s3, corpora: Corpora, tmp_path: Path, monkeypatch, capsys) -> None:
    hint = "(The request went to AWS; if the store is elsewhere, set AWS_ENDPOINT_URL to the `remote.endpoint`"
    assert main(["inspect", f"s3://bucket/{tmp_path.name}/none", "--doc", "x"]) == 2
    assert "AWS" not in capsys.readouterr().err  # the environment says where the store is
    monkeypatch.delenv("AWS_ENDPOINT_URL")

    def ask(place, call, **options):
        if options.get("missing"):
            raise FileNotFoundError(place)
        raise RemoteError(f"{place}: EndpointConnectionError")

    monkeypatch.setattr(remote_module, "ask", ask)
    assert main(["inspect", corpora.far, "--doc", "x"]) == 2
    assert f"no corpus here; build one with: python -m pipelines build CONFIG {hint}" in capsys.readouterr().err
    assert main(["export", str(corpora.near), corpora.far]) == 2
    assert f"EndpointConnectionError {hint}" in capsys.readouterr().err
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.remote.endpoint)
    assert main(["export", str(corpora.near), corpora.far]) == 2
    assert "AWS" not in capsys.readouterr().err


def test_what_is_searched_compared_and_read_is_the_same_in_a_store(corpora: Corpora, capsys) -> None:
    found = pipelines.search(corpora.near, "text 1")
    assert found.documents
    assert pipelines.search(corpora.far, "text 1") == found
    assert main(["diff", str(corpora.near), corpora.far]) == 0
    assert "both keep the same documents with the same texts" in capsys.readouterr().out
    near, far = pipelines.open_corpus(corpora.near), pipelines.open_corpus(corpora.far)
    assert far.documents().read_all().equals(near.documents().read_all())
    assert far.verdicts().read_all().equals(near.verdicts().read_all())


def test_diff_with_an_earlier_build_in_a_store(s3, corpora: Corpora, tmp_path: Path, capsys) -> None:
    place = f"s3://bucket/{tmp_path.name}/again"
    build(corpora.root, "again", place, s3)
    with (corpora.root / "raw/web/0.jsonl").open("a") as file:
        file.write('{"text": "one more"}\n')
    build(corpora.root, "again", place, s3)
    names = [path.name for path in parse_location(place).glob("earlier-*")]
    assert len(names) == 1
    assert main(["diff", "previous", place]) == 0
    assert "not read" in capsys.readouterr().out
    assert pipelines.diff(names[0].split("-")[2][:12], place).sources["web"].came_in == {"not read": 1}
    assert main(["inspect", place, "--builds"]) == 0
    assert "the published build" in capsys.readouterr().out
