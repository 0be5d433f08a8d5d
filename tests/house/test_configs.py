"""The corpus files and study files of corpora_configs/ are valid, and recipes build on sample data."""

import gzip
import json
import shutil
from html import escape
from itertools import islice
from pathlib import Path

import pytest
import yaml

from pipelines.__main__ import main
from pipelines.contracts.manifest import load_corpus
from pipelines.planning.corpus import load_corpus_config, plain_config
from tests.conftest import FASTTEXT_BEGIN
from tests.pipelines.reading.formats.dumps.test_mediawiki import dump, page
from tests.pipelines.reading.formats.dumps.test_stack_exchange import answer, posts, question
from tests.trainers.conftest import build_corpus
from trainers.__main__ import main as study_main
from trainers.studies.designs.study_entries import study_entries, variants_of
from trainers.studies.running.study_directory import load_study

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "corpora_configs" / "studies").glob("*.yaml"))
CORPORA = sorted(set((ROOT / "corpora_configs").rglob("*.yaml")) - set(STUDIES))


try:
    import trafilatura  # noqa: F401

    EXTRACT = []
except ImportError:  # it, or what it needs, is not installed
    EXTRACT = ["extract=resiliparse"]


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    for name in ("models/lid.176.ftz", "lists/ldnoobw/en"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("word\n")
    (tmp_path / "models/lid.176.ftz").write_bytes(FASTTEXT_BEGIN)
    monkeypatch.chdir(tmp_path)


def assignments(path):
    """Return the settings that override a recipe's extractor where the extra `trafilatura` is not installed."""
    sources = yaml.safe_load(path.read_text())["sources"]
    return [f"sources.{source['name']}.{change}" for source in sources if "extract" in source for change in EXTRACT]


@pytest.mark.long
@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("path", CORPORA, ids=lambda path: path.name)
def test_every_corpus_file_plans(path, capsys):
    assert main(["plan", str(path), "--check", *assignments(path)]) == 0
    said = capsys.readouterr().out
    assert "valid" in said
    assert "warning" not in said  # every rule over a nullable column says what null does


@pytest.mark.long
@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("path", CORPORA, ids=lambda path: path.name)
def test_a_resolved_corpus_file_is_a_valid_input(path, tmp_path):
    config = load_corpus_config(path, assignments(path))
    again = tmp_path / path.name
    again.write_text(yaml.safe_dump(plain_config(config)))
    assert load_corpus_config(again) == config


@pytest.mark.parametrize(
    "name",
    ["web_en.yaml", "c4.yaml", "refinedweb.yaml", "books.yaml", "news.yaml", "multilingual.yaml", "conversation.yaml"],
)
def test_a_recipe_says_how_to_fetch_its_language_model(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = ROOT / "corpora_configs" / name
    assert main(["plan", str(path), "--check", *assignments(path)]) == 2
    assert "doctor --fetch-lid" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_every_study_file_is_valid_and_names_a_corpus_file_of_the_repository(path):
    study = load_study(path)
    outputs = {yaml.safe_load(corpus.read_text()).get("output") for corpus in CORPORA}
    assert set(study.corpora) <= outputs
    assert study.corpus_file is None or ROOT / study.corpus_file in CORPORA
    assert study.question
    assert f"studies/{path.name}" in (ROOT / "docs" / "studies.md").read_text()


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    return build_corpus(tmp_path_factory.mktemp("stand_in"))


@pytest.mark.long
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_every_study_plans_and_starts_nothing(path, stand_in, tmp_path, monkeypatch, capsys):
    (tmp_path / "corpora_configs").symlink_to(ROOT / "corpora_configs")
    (tmp_path / "runs" / "demo" / "export").mkdir(parents=True)  # of `make demo`
    shutil.copy(stand_in / "tokenizer.json", tmp_path / "runs" / "demo" / "export")
    monkeypatch.chdir(tmp_path)
    study = load_study(path)
    changes = [f"corpora=[{stand_in}]", "confirmation=null", "answered_by=null", "proposal.max_epochs=null"]
    changes = [] if study.corpus_file else changes
    assert study_main(["study", "plan", str(path), *changes]) == 0
    assert sorted(item.name for item in tmp_path.iterdir()) == ["corpora_configs", "runs"]
    said = capsys.readouterr().out
    if study.corpus_file is None:
        assert "to train" in said
        return
    variants = variants_of(study)
    assert said.count(": to build  ") == len(variants)
    for variant in variants:
        assert main(["plan", variant.file, *variant.changes, "--check"]) == 0
    sources = {source["name"] for source in yaml.safe_load((ROOT / study.corpus_file).read_text())["sources"]}
    assert {name for entry in study_entries(study).values() for name in entry.weights or ()} <= sources


def test_there_is_a_demo():
    assert [path.name for path in CORPORA if path.name == "demo.yaml"] == ["demo.yaml"]


# What each recipe is built from where the sample data is there, and what must hold of it.
SAMPLES = {
    "web_en.yaml": [
        "sources.web.root={data}/raw_web",
        "sources.web.include=['readability_pages.warc.gz', 'warc_samples/*.warc.gz']",
        "steps.language.models=[{data}/models/lid.176.ftz]",
    ],
    "refinedweb.yaml": [
        "sources.web.root={data}/raw_web",
        "sources.web.include=['readability_pages.warc.gz']",
        "steps.language.models=[{data}/models/lid.176.ftz]",
    ],
    "c4.yaml": [
        "sources.web.root={data}/prose/news_bbc.jsonl.gz",
        "sources.web.include=['**']",
        "sources.web.format=jsonl",
        "steps.language.models=[{data}/models/lid.176.ftz]",
        "steps.word_list.files=['{data}/toxicity/ldnoobw/en']",
        "steps.filter[5].at_least=0.9",
    ],
    "multilingual.yaml": [
        *(f"sources.wiki_{language}.root={{data}}/prose/wiki_{language}.jsonl.gz" for language in ("ko", "zh")),
        *(f"sources.wiki_{language}.include=['**']" for language in ("en", "ko", "zh")),
        "sources.wiki_en.root={data}/prose/news_bbc.jsonl.gz",
        "steps.language.models=[{data}/models/lid.176.ftz, resiliparse]",
    ],
    "books.yaml": [  # chapters of textbooks, most of which are shorter than a book
        "sources.books.root={data}/prose/textbooks.jsonl.gz",
        "sources.books.include=['**']",
        "sources.books.format=jsonl",
        "steps.language.models=[{data}/models/lid.176.ftz, resiliparse]",
        "steps.filter[1].at_least=2000",
    ],
    "news.yaml": [
        "sources.news.root={data}/raw_web",
        "sources.news.include=['readability_pages.warc.gz']",
        "steps.language.models=[{data}/models/lid.176.ftz, resiliparse]",
    ],
    "questions.yaml": ["sources.questions.root={made}/dumps"],
    "conversation.yaml": [
        "sources.chats.root={data}/prose/dialogue.jsonl.gz",
        "sources.chats.include=['**']",
        "sources.chats.text=null",
        "steps.language.models=[{data}/models/lid.176.ftz, resiliparse]",
    ],
    "papers.yaml": [  # chapters of textbooks, which have no formulas
        "sources.papers.root={data}/prose/textbooks.jsonl.gz",
        "sources.papers.include=['**']",
        "sources.papers.format=jsonl",
    ],
    "law.yaml": ["sources.law.root={data}/prose/legal_dc_acts_laws.jsonl.gz", "sources.law.include=['**']"],
    "encyclopedia.yaml": ["sources.encyclopedia.root={made}/wiki"],
    "code.yaml": ["sources.code.root=.", "sources.code.include=['pipelines/**/*.py']", "sources.docs.root=."],
}


def make_dumps(data, folder):
    def records(name, count=None):
        with gzip.open(data / f"prose/{name}.jsonl.gz") as lines:
            return [json.loads(line) for line in islice(lines, count)]

    found = [(each["id"].split("/")[1], each["meta"], each["text"]) for each in records("forum_stackexchange")]
    coffee = [each for each in found if each[1]["site"] == found[0][1]["site"]]
    rows = [
        question(int(number), text, Score=meta["score"], CreationDate="2016-01-01T00:00:00.000")
        if meta["type"] == "1"
        else answer(int(number), int(meta["parent"]), text, Score=meta["score"])
        for number, meta, text in coffee
        if meta["type"] in ("1", "2")
    ]
    (folder / "dumps/coffee.stackexchange.com").mkdir(parents=True)
    (folder / "dumps/coffee.stackexchange.com/Posts.xml").write_bytes(posts(*rows))
    (folder / "wiki").mkdir()
    articles = [page(f"Article {number}", escape(each["text"])) for number, each in enumerate(records("wiki_en", 500))]
    (folder / "wiki/pages.xml").write_bytes(dump(*articles))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SAMPLES)
def test_recipes_build_on_sample_data(name, shared_data, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = ROOT / "corpora_configs" / name
    if any("{made}" in assignment for assignment in SAMPLES[name]):
        make_dumps(shared_data, tmp_path)
    named = {"data": shared_data, "made": tmp_path}
    overrides = [*(assignment.format(**named) for assignment in SAMPLES[name]), *assignments(path)]
    overrides += [f"output={tmp_path}/out", "steps.learn_tokenizer.vocab_size=2000"]
    assert main(["build", str(path), "--in-process", *overrides]) == 0
    corpus = load_corpus(tmp_path / "out")
    for source, counts in corpus.sources.items():
        assert counts["in"] == counts["kept"] + sum(counts["quarantined"].values())
        rows = [row for row in corpus.funnel if row["source"] == source]
        dropped = sum(sum(row["dropped"].values()) for row in rows)
        kept = sum(shard.documents for shard in corpus.shard_sets["shards"].shards if shard.source == source)
        assert 0 < kept == counts["kept"] - dropped
    assert any(row["dropped"] for row in corpus.funnel)
