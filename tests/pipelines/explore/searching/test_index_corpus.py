"""The search index against Python's own search of the texts, and its reuse, damage to it, `forget` and `gc`."""

import json
import random
import re
from dataclasses import dataclass

import pyarrow as pa
import pytest

import pipelines.explore.searching.index_corpus as module
import pipelines.explore.searching.part_index as part_index
from gristmill.errors import ConflictError, CorruptFileError, UserError
from gristmill.storage.disk import LocalPath
from pipelines import open_corpus
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.edits import EDITS, edits_column
from pipelines.contracts.reads import TEXT
from pipelines.contracts.search_index.index_units import INDEX_FOLDER
from pipelines.contracts.stage import PartStage
from pipelines.contracts.tombstone import read_tombstone, write_tombstone
from pipelines.explore.searching.index_corpus import index_corpus
from pipelines.explore.searching.query import Query
from pipelines.explore.searching.search_corpus import search_corpus
from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.measure.quality_signals import QualitySignals
from tests.pipelines.explore.searching.test_required_literals import random_pattern


@dataclass(frozen=True)
class Cut(PartStage):
    def reads(self):
        return (TEXT,)

    def writes(self):
        return pa.schema([("edits", EDITS)])

    def annotate(self, docs):
        found = [
            [match.span() for match in re.finditer(rb"\([^)]*\)", text.encode())] for text in docs["text"].to_pylist()
        ]
        return pa.table(
            [edits_column([[(*span, "*", "CUT") for span in spans] for spans in found])], schema=self.writes()
        )


def shown(text):
    return re.sub(r"\([^)]*\)", "*", text)


def random_texts(count, seed):
    choose = random.Random(seed)
    words = [
        "the",
        "mill",
        "Mühle",
        "(hidden)",
        "水車小屋",
        "aaa",
        "\U0001f468\u200d\U0001f469",
        "\n",
        " ",
        "to be",
        "é",
    ]
    return ["x" + "".join(choose.choices(words, k=choose.randint(0, 20))) + "." for _ in range(count)]


def build_corpus(root, texts, least=0, part_bytes=2000):
    sources = []
    for name, lines in texts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(0, len(lines), 40):
            records = [json.dumps({"text": text}) for text in lines[number : number + 40]]
            (root / name / f"{number:04d}.jsonl").write_text("\n".join(records), encoding="utf-8")
        sources.append(Source(name, str(root / name), "jsonl", part_bytes=part_bytes, allow_empty=True))
    steps = (
        StepConfig("quality_signals", QualitySignals(), "quality_signals"),
        StepConfig("filter", Filter((Rule(signal="n_chars", at_least=least),)), "filter"),
        StepConfig("cut", Cut(), "cut"),
    )
    config = CorpusConfig("indexed", str(root / "out"), tuple(sources), steps)
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    return config.place


def count(texts, phrase):
    found = [shown(text).count(phrase) for text in texts]
    return sum(number > 0 for number in found), sum(found)


def units(place):
    return sorted(path.name for path in (place / INDEX_FOLDER).iterdir())


@pytest.fixture(scope="module")
def texts():
    return {"web": random_texts(150, 1), "books": random_texts(40, 2)}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, texts):
    """An indexed corpus whose parts have several segments."""
    place = build_corpus(tmp_path_factory.mktemp("indexed"), texts, least=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_index, "MOST_NARROW", 150)
        assert index_corpus(place).written > 5
    return place


@pytest.mark.long
def test_every_phrase_is_counted_as_by_python(corpus, texts):
    opened, choose = open_corpus(corpus), random.Random(0)
    everything = [*texts["web"], *texts["books"]]
    kept = [text for text in everything if len(text) >= 20]
    assert len(kept) < len(everything)
    for _ in range(150):
        text = choose.choice([shown, str])(choose.choice(everything))  # some phrases lie in what an edit removed
        at = choose.randrange(len(text))
        phrase = text[at : at + choose.randint(1, 25)]
        for dropped, searched in ((False, kept), (True, everything)):
            found = opened.search(phrase, dropped=dropped, limit=3)
            assert (found.documents, found.hits) == count(searched, phrase), phrase
            assert found.read == 0
            assert all(hit.found == phrase for hit in found.first)


def test_what_an_edit_removed_is_not_in_the_index(corpus):
    assert open_corpus(corpus).search("hidden", dropped=True).documents == 0
    assert open_corpus(corpus).search("mill*", dropped=True).documents > 0
    assert not any(b"hidden" in path.read_bytes() for path in (corpus / INDEX_FOLDER).rglob("*.*"))


@pytest.mark.long
def test_an_index_gives_what_reading_gives(corpus, tmp_path, texts):
    read = build_corpus(tmp_path, texts, least=20)
    choose = random.Random(9)
    queries = [Query(random_pattern(choose), regex=True) for _ in range(40)]
    queries += [Query(text, words=True) for text in ("mill", "the", "to be", "水車小屋", "aaa", "aaaaaa", "*")]
    queries += [Query("MILL", ignore_case=True), Query(r"mill|Mühle\*", regex=True), Query("the(mill)?", regex=True)]
    compared = 0
    for query in queries:
        for dropped in (False, True):
            try:
                expected = search_corpus(read, query, dropped=dropped, limit=5)
            except UserError as error:
                with pytest.raises(UserError, match=re.escape(str(error))):
                    search_corpus(corpus, query, dropped=dropped)
                continue
            found = search_corpus(corpus, query, dropped=dropped, limit=5)
            assert (found.documents, found.hits, found.first) == (expected.documents, expected.hits, expected.first)
            assert (found.read, expected.read) == (0, expected.parts)
            compared += expected.hits > 0
    assert compared > 20


@pytest.mark.long
def test_hits_do_not_reach_across_documents_and_parts(tmp_path):
    texts = {"web": ["over the", " mill and", "over the", " mill and"] * 4}
    place = build_corpus(tmp_path, texts, part_bytes=40)
    assert index_corpus(place).written > 2
    assert search_corpus(place, Query("the mill")).hits == 0
    assert search_corpus(place, Query("the")).hits == 8


def test_a_corpus_without_documents(tmp_path):
    place = build_corpus(tmp_path, {"web": [""], "books": ["a mill"]})  # an empty text is quarantined
    index_corpus(place)
    assert search_corpus(place, Query("mill")).hits == 1
    assert search_corpus(place, Query("mill"), ["web"]).hits == 0


@pytest.mark.long
def test_only_new_parts_are_indexed(tmp_path):
    texts = {"web": random_texts(80, 3)}
    place = build_corpus(tmp_path, texts)
    first = index_corpus(place)
    assert (first.reused, first.text_bytes) == (0, sum(len(shown(text).encode()) for text in texts["web"]))
    again = index_corpus(place)
    assert (again.written, again.reused) == (0, first.written)
    texts["web"] += ["a wholly new mill"]
    build_corpus(tmp_path, texts)
    assert search_corpus(place, Query("wholly new")).hits == 1  # its part is read
    assert search_corpus(place, Query("wholly new")).read > 0
    more = index_corpus(place)
    assert more.reused > 0 < more.written < first.written
    found = search_corpus(place, Query("wholly new"))
    assert (found.hits, found.read) == (1, 0)


@pytest.mark.long
def test_other_rules_need_no_other_index(tmp_path):
    texts = {"web": random_texts(60, 4)}
    place = build_corpus(tmp_path, texts)
    index_corpus(place)
    build_corpus(tmp_path, texts, least=40)
    found = search_corpus(place, Query("mill"))
    assert (found.documents, found.hits) == count([text for text in texts["web"] if len(text) >= 40], "mill")
    assert found.read == 0


@pytest.mark.long
def test_the_same_parts_give_the_same_bytes(tmp_path, corpus, texts, monkeypatch):
    monkeypatch.setattr(part_index, "MOST_NARROW", 150)
    other = build_corpus(tmp_path, texts, least=20)
    index_corpus(other, ["books"])
    names = units(other)
    assert names == [name for name in units(corpus) if name.startswith("books-")]
    for name in names:
        for file in (other / INDEX_FOLDER / name).iterdir():
            assert file.read_bytes() == (corpus / INDEX_FOLDER / name / file.name).read_bytes()


def test_an_unfinished_index_is_ignored_and_a_damaged_one_is_refused(tmp_path, capsys):
    place = build_corpus(tmp_path, {"web": ["the mill " * 20] * 8})
    index_corpus(place)
    unit = place / INDEX_FOLDER / units(place)[0]
    (unit / "manifest.json").unlink()
    (unit / ".texts.arrow.0.tmp").write_bytes(b"half")
    finished = place / INDEX_FOLDER / units(place)[-1]
    (finished / ".texts.arrow.0.tmp").write_bytes(b"half")  # of a command that was killed when another had finished
    total = len(units(place))
    assert finished != unit
    assert main(["search", str(place), "mill"]) == 0
    assert f"1 of {total} parts have no current index and were read as a whole" in capsys.readouterr().out
    assert main(["index", str(place)]) == 0
    shown_lines = capsys.readouterr().out
    assert "1 part indexed" in shown_lines
    assert f"; {total - 1} had a current index" in shown_lines
    for each in (unit, finished):
        assert sorted(path.name for path in each.iterdir()) == ["manifest.json", "places.bin", "texts.arrow"]
    for name in ("places.bin", "manifest.json"):
        damaged = bytearray((unit / name).read_bytes())
        damaged[len(damaged) // 2] ^= 1
        (unit / name).write_bytes(damaged)
        with pytest.raises(
            CorruptFileError, match="is damaged; remove the directory, then run `python -m pipelines index`"
        ):
            search_corpus(place, Query("mill"))


@pytest.mark.long
def test_forget_removes_the_index_of_its_parts(tmp_path, capsys):
    texts = [f"the mill of number {number} and more words" for number in range(60)]
    texts[7] = "a most peculiar sentence about Zanzibar and its mills"
    place = build_corpus(tmp_path, {"web": texts, "books": ["a book about a mill"]})
    index_corpus(place)
    before = units(place)
    assert search_corpus(place, Query("Zanzibar")).first[0].document == "web/0000.jsonl#7"
    (tmp_path / "ids").write_text("web/0000.jsonl#7\n")
    assert main(["forget", str(place), "--ids", str(tmp_path / "ids")]) == 0
    assert "nothing is left of them" in capsys.readouterr().out
    assert len(set(before) - set(units(place))) == 1
    assert not any(b"Zanzibar" in path.read_bytes() for path in place.rglob("*") if path.is_file())
    found = search_corpus(place, Query("mill"))
    assert (found.documents, found.read) == (60, 1)
    assert index_corpus(place).written == 1
    assert search_corpus(place, Query("Zanzibar"), dropped=True).documents == 0


def test_an_index_that_forget_overtakes_is_not_written(tmp_path, monkeypatch):
    place = build_corpus(tmp_path, {"web": random_texts(60, 5)})
    read = module.shown_texts

    def overtaken(*arguments):
        write_tombstone(place, {**read_tombstone(place), "records": {"web": ["0000.jsonl#1"]}})
        return read(*arguments)

    monkeypatch.setattr(module, "shown_texts", overtaken)
    with pytest.raises(ConflictError, match="documents were forgotten while this command ran"):
        index_corpus(place)
    assert not [path for path in (place / INDEX_FOLDER).rglob("*") if path.is_file()]


def test_no_index_begins_while_documents_are_being_forgotten(tmp_path):
    place = build_corpus(tmp_path, {"web": ["one document", "another"]})
    doc = {"source": "web", "path": "0000.jsonl", "record": 1, "id": "", "part": 0, "row": 1}
    tombstone = {**read_tombstone(place), "records": {"web": ["0000.jsonl#1"]}, "pending": [doc]}
    write_tombstone(place, tombstone)
    with pytest.raises(UserError, match="forgetting was interrupted; finish it first"):
        index_corpus(place)
    assert not (place / INDEX_FOLDER).exists()


def test_an_index_that_is_removed_while_it_is_written_says_so(tmp_path, monkeypatch):
    place = build_corpus(tmp_path, {"web": ["one document", "another"]})
    sort = part_index.sort_places

    def remove_and_sort(block):
        (place / INDEX_FOLDER).remove_tree()
        return sort(block)

    monkeypatch.setattr(part_index, "sort_places", remove_and_sort)
    with pytest.raises(
        ConflictError, match="was removed by another command while it was written; run the command again"
    ):
        index_corpus(place)


@pytest.mark.long
def test_gc_removes_indexes_that_are_not_current(tmp_path, capsys):
    texts = {"web": random_texts(60, 6)}
    place = build_corpus(tmp_path, texts)
    index_corpus(place)
    before = units(place)
    texts["web"][3] = "another text"
    build_corpus(tmp_path, texts)
    index_corpus(place)
    steps = [{"quality_signals": {}}, {"filter": [{"signal": "n_chars", "at_least": 0}]}]
    config = {"name": "indexed", "output": str(place), "steps": steps}
    config["sources"] = [{"name": "web", "root": str(tmp_path / "web"), "format": "jsonl", "part_bytes": 2000}]
    (tmp_path / "corpus.yaml").write_text(json.dumps(config))
    current = set(units(place)) - set(before)
    (place / INDEX_FOLDER / ".web-00000-0123456789ab.0.tmp").mkdir()
    assert main(["gc", str(tmp_path / "corpus.yaml"), "--delete"]) == 0
    assert f"{INDEX_FOLDER}/web-" in capsys.readouterr().out
    assert current <= set(units(place)) < {*before, *current}
    assert search_corpus(place, Query("mill")).read == 0


@pytest.mark.long
def test_sources_and_bad_input(tmp_path, texts):
    place = build_corpus(tmp_path, texts)
    assert index_corpus(place, ["books"]).written == len(units(place))
    assert search_corpus(place, Query("mill"), ["books"]).read == 0
    with pytest.raises(UserError, match="no source 'boks'; did you mean 'books'"):
        index_corpus(place, ["boks"])
    with pytest.raises(UserError, match="no corpus here"):
        index_corpus(LocalPath(tmp_path / "nowhere"))
