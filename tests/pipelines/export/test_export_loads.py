"""Exports can be read by Hugging Face `load_dataset`, as a directory and by a glob, and by our own reader."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.given_split import FieldSplit
from pipelines.export.text_export import export_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.measure.quality_signals import QualitySignals

SOURCES = ("code", "news", "web")  # without url and meta; without url; with both


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loads")
    (root / "code").mkdir()
    (root / "code" / "a.py").write_text("x = 1\n")
    for name in ("news", "web"):
        more = {"url": "https://example.org/1"} if name == "web" else {}
        rows = [{"text": f"{name} {number} \u2028", "score": number / 3, **more} for number in range(5)]
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = (
        Source("code", str(root / "code"), "text", licence="MIT", origin="here | <there>\nand"),
        Source("news", str(root / "news.jsonl"), "jsonl"),
        Source("web", str(root / "web.jsonl"), "jsonl"),
    )
    steps = (StepConfig("quality_signals", QualitySignals(), "quality_signals", ("web",)),)
    config = CorpusConfig("loads", str(root / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, root / "out")), LocalCluster(), lambda line: None)
    return root / "out"


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in (
        "HF_HUB_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "HF_HUB_DISABLE_TELEMETRY",
        "HF_DATASETS_DISABLE_PROGRESS_BARS",
    ):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    datasets = pytest.importorskip("datasets", reason="Hugging Face datasets come with the extra `dev`")

    def rows(*words: Any, **options: Any) -> list[dict[str, Any]]:
        options = {"split": "train", **options}
        return list(datasets.load_dataset(*words, **options, cache_dir=str(tmp_path / "cache")))

    return rows


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # those of the library
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
@pytest.mark.parametrize("columns", [(), ("word_count", "alpha_word_ratio")])
def test_load_dataset_reads_an_export(corpus: Path, tmp_path: Path, load, kind: str, columns: tuple[str, ...]) -> None:
    """The source that sorts first has neither URLs nor other fields, and the columns are null in two of three
    sources.
    """
    export_corpus(corpus, tmp_path / "e", kind, None, columns)
    module = {"jsonl": "json", "parquet": "parquet"}[kind]
    found = [load(str(tmp_path / "e")), load(module, data_files=f"{tmp_path}/e/data/*")]
    assert found[0] == found[1]
    assert {tuple(row) for row in found[0]} == {("id", "text", "source", "url", "meta", *columns)}
    assert sorted(row["source"] for row in found[0]) == ["code", *["news"] * 5, *["web"] * 5]
    by_id = {row["id"]: row for row in found[0]}
    assert by_id["code/a.py#0"] | {"url": 0} == {
        "id": "code/a.py#0", "text": "x = 1\n", "source": "code", "url": 0, "meta": "{}", **dict.fromkeys(columns)
    }  # fmt: skip
    assert json.loads(by_id["news/news.jsonl#1"]["meta"]) == {"score": 1 / 3}
    if columns:
        assert by_id["web/web.jsonl#4"]["word_count"] == 2
    for source in SOURCES:
        alone = load(str(tmp_path / "e"), source)
        assert alone == [row for row in found[0] if row["source"] == source]


@pytest.mark.filterwarnings("ignore")  # those of the library
def test_tars_are_read_as_webdataset(corpus: Path, tmp_path: Path, load) -> None:
    export_corpus(corpus, tmp_path / "rows", "parquet", None, ["word_count"])
    files = export_corpus(corpus, tmp_path / "tars", "webdataset", None, ["word_count"])
    assert [file.path for file in files] == [
        f"data/0000{n}-{name}.tar" for n, name in enumerate(["web", "code", "news"])
    ]
    rows = {row["id"]: row for row in load(str(tmp_path / "rows"))}
    with tarfile.open(tmp_path / "tars" / files[0].path) as archive:
        members = [(member.name, archive.extractfile(member).read()) for member in archive]
    for (name, text), (other, fields) in zip(members[::2], members[1::2], strict=True):
        assert (name.split(".")[1:], other) == (["txt"], name.replace(".txt", ".json"))
        assert {"text": text.decode(), **json.loads(fields)} == rows[json.loads(fields)["id"]]
    for found in (load(str(tmp_path / "tars")), load("webdataset", data_files=f"{tmp_path}/tars/data/*")):
        texts = {sample["json"]["id"]: sample["txt"] for sample in found}
        assert {name: text if isinstance(text, str) else text.decode() for name, text in texts.items()} == {
            name: row["text"] for name, row in rows.items()
        }
        assert len({sample["__key__"] for sample in found}) == len(rows)
    again = export_corpus(corpus, tmp_path / "again", "webdataset", None, ["word_count"])
    assert [file.sha256 for file in again] == [file.sha256 for file in files]


@pytest.fixture(scope="module")
def split_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus where the source `marked` gives splits by a field and `plain` gives none; the only test document of `marked`
    is dropped.
    """
    root = tmp_path_factory.mktemp("splits")
    subsets = ["train", "dev", "train", "dev", "", "exam", "train"]
    rows = [{"text": f"words of document {number}", "subset": subset} for number, subset in enumerate(subsets)]
    rows[5]["text"] = "short"
    (root / "marked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (root / "plain.jsonl").write_text(json.dumps({"text": "words of a plain document"}) + "\n")
    split = FieldSplit("field", "subset", ("dev",), ("exam",))
    sources = (
        Source("plain", str(root / "plain.jsonl"), "jsonl"),
        Source("marked", str(root / "marked.jsonl"), "jsonl", split=split, part_bytes=60),
    )
    steps = (
        StepConfig("quality_signals", QualitySignals(), "quality_signals"),
        StepConfig("filter", Filter((Rule(signal="word_count", at_least=2),)), "filter"),
    )
    config = CorpusConfig("splits", str(root / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, root / "out")), LocalCluster(), lambda line: None)
    return root / "out"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # those of the library
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_load_dataset_opens_the_splits_that_sources_give(split_corpus: Path, tmp_path: Path, load, kind: str) -> None:
    files = export_corpus(split_corpus, tmp_path / "e", kind, None)
    numbers = {split: [] for split in ("train", "validation", "test")}
    for split, suffixes in (("train", (0, 2, 4, 6)), ("validation", (1, 3))):
        numbers[split] = [f"marked/marked.jsonl#{number}" for number in suffixes]
    assert {file.split for file in files} == {"train", "validation"}
    assert {file.path.split(".")[1] for file in files} == {"train", "validation"}
    for split in ("train", "validation"):
        found = load(str(tmp_path / "e"), split=split)
        assert [row["id"] for row in found if row["source"] == "marked"] == numbers[split]
        assert load(str(tmp_path / "e"), "marked", split=split) == [row for row in found if row["source"] == "marked"]
        assert sum(row["source"] == "plain" for row in found) == (split == "train")
        assert sum(file.documents for file in files if file.split == split) == len(found)
    with pytest.raises(ValueError, match="test"):
        load(str(tmp_path / "e"), split="test")


def test_an_export_without_the_source_that_gives_a_split(split_corpus: Path, tmp_path: Path, load) -> None:
    files = export_corpus(split_corpus, tmp_path / "e", "parquet", ["plain"])
    assert [(file.path, file.split) for file in files] == [("data/00000-plain.train.parquet", "train")]
    assert len(load(str(tmp_path / "e"))) == 1


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_our_own_reader_reads_it_back(corpus: Path, tmp_path: Path, kind: str) -> None:
    export_corpus(corpus, tmp_path / "e", kind, None)
    source = Source("again", str(tmp_path / "e" / "data"), kind)
    tables = [part.documents for part in read_documents(source, list_files(source), 1 << 20)]
    rows = pa.concat_tables(tables).select(["text", "url", "meta"]).to_pylist()
    assert len(rows) == 11
    meta = [json.loads(row["meta"]) for row in rows]
    assert {(fields["source"], row["url"]) for fields, row in zip(meta, rows, strict=True)} == {
        ("code", None), ("news", None), ("web", "https://example.org/1")
    }  # fmt: skip
    assert json.loads(next(fields["meta"] for fields in meta if fields["id"] == "news/news.jsonl#1")) == {
        "score": 1 / 3
    }


def test_the_card_says_what_is_in_it(corpus: Path, tmp_path: Path) -> None:
    import yaml

    export_corpus(corpus, tmp_path / "e", "jsonl", None)
    front, _, body = (tmp_path / "e" / "README.md").read_text().removeprefix("---\n").partition("\n---\n")
    paths = {
        config["config_name"]: [(each["split"], each["path"]) for each in config["data_files"]]
        for config in yaml.safe_load(front)["configs"]
    }
    assert paths == {
        name: [("train", f"data/{stem}.jsonl.gz")]
        for name, stem in (("default", "*"), *((source, f"?????-{source}") for source in SOURCES))
    }
    assert "| code | 1 | 6 | MIT | here &#124; &lt;there> and |" in body
    assert "| web | 5 |" in body
