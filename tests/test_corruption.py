"""Damage at rest: a flipped bit or a lost end of any file of a corpus is found when the file is read, and the file is named.

Files are damaged one at a time, in a published corpus and in a build that was interrupted. Then everything that reads them
does so again. Either one of our errors names the file, or what was read and built is what it was before.
"""

import re
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

import pipelines.contracts.store as store
from pipelines.build import build, claim
from pipelines.cluster import LocalCluster
from pipelines.contracts.errors import CorruptFileError
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.stage import DROP
from pipelines.contracts.store import digest, verify
from pipelines.corpus import load_corpus_config
from pipelines.estimate import forecast
from pipelines.forget import forget
from pipelines.inventory import take_inventory
from pipelines.plan import make_plan
from pipelines.read_step import file_indexes
from pipelines.tombstone import read_tombstone
from tests.conftest import paragraph
from tests.damage import cuts, damaged, files_of, flips, unnamed

# What no reader has to find: a page that no program reads, what says that the page is current, and what is made again.
PAGES = ("report.html", "report.json")
CACHES = ("run.json", ".checksums.json")  # rates of steps, from which estimates are made; checksums of the sources


def plan_of(config: Path):
    loaded = load_corpus_config(config, ())
    return make_plan(loaded, take_inventory(loaded.sources, Path(loaded.output)))


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """A corpus of two small sources with all kinds of files: parts, edits, clusters, URLs, a tokenizer, shards."""
    import json

    place = tmp_path_factory.mktemp("corruption")
    web, code = place / "raw/web", place / "raw/code"
    web.mkdir(parents=True)
    code.mkdir()
    texts = [paragraph(number) for number in range(12)]
    texts[5] = texts[4]
    texts[7] = texts[6].replace("stands", "stood", 1) + " The end."
    texts[9] += " Write to jane.roe@example.org about it."
    lines = [json.dumps({"text": text, "url": f"https://site{i}.example/{i}"}) for i, text in enumerate(texts)]
    (web / "0.jsonl").write_text("\n".join([*lines, "not json"]) + "\n")
    for number in range(4):
        (code / f"m{number}.py").write_text(f"def f{number}(x):\n    return x  # {paragraph(100 + number, 30)}\n")
    path = place / "small.yaml"
    path.write_text(f"""\
name: small
output: {place}/out
sources:
  - {{name: web, root: {web}, format: jsonl, part_bytes: 8000, licence: CC0-1.0}}
  - {{name: code, root: {code}, format: text, part_bytes: 2000, licence: CC0-1.0}}
steps:
  - url_rules: {{}}
    sources: [web]
  - quality_signals: {{}}
    sources: [web]
  - filter: [{{rules: gopher_quality@massivetext}}]
    sources: [web]
  - pii: {{entities: [EMAIL_ADDRESS]}}
    sources: [web]
  - dedup_url: {{}}
    sources: [web]
  - text_hash: {{}}
  - dedup_exact: {{}}
  - minhash_signatures: {{}}
  - dedup_minhash: {{}}
  - learn_tokenizer: {{vocab_size: 500, sample_bytes: 20000}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0.3}}
""")
    return path


@pytest.fixture(scope="module")
def corpus(config) -> Path:
    plan = plan_of(config)
    build(plan, LocalCluster(), lambda line: None)
    return Path(plan.config.output)


def everything(config: Path, root: Path) -> str:
    """A digest of all that a corpus says: to lineage, to a trainer, and to the plan of another build."""
    from tokenizer.encode import Encoder
    from trainers.data import open_corpus as open_for_training
    from trainers.data import verified_tokenizer

    corpus = open_corpus(root)
    found = [asdict(corpus.manifest), *(asdict(step.manifest) for step in corpus.steps)]
    for part in corpus.parts():
        columns = [name for annotation in part.annotations for name in annotation.schema]
        table = part.table(dict.fromkeys([*part.schema, *columns, "edited_text"]))
        found += [part.name, repr(table.to_pydict()), corpus.printed_ids(part)]
        if part.index == 0:
            located = corpus.find(table["id"][0].as_py().hex())
            found += [located.printed, repr(corpus.shard_rows(located.id))]
    for name in corpus.manifest.sources:
        read = corpus.read_step(name)
        found += [repr(list(corpus.quarantined(name)))]
        found += [repr(table.to_pydict()) for table in file_indexes(read.directory, read.manifest)]
    training = open_for_training((str(root),), None)
    found += [Encoder.load(str(verified_tokenizer(training))).decode(list(range(128, 400)))]
    for sources in (training.train, training.validation):
        for name, source in sources.items():
            for shard in map(source.shard, range(len(source.shards))):
                arrays = (shard.tokens, shard.offsets, shard.n_bytes)
                found += [name, *(array.tolist() for array in arrays), repr(shard.doc_ids.to_pylist())]
    for step in corpus.steps:
        found += [str(verify(step.directory, record)) for record in step.manifest.files]
    claim(root, "small", write=False)
    plan = plan_of(config)
    forecast(plan, [root])
    return digest([*found, [step.fingerprint for step in plan.steps]])


def test_damage_to_any_file_of_a_corpus_is_found_by_its_readers(config, corpus):
    check_corpus(config, corpus, flipped=2, cut=1)


@pytest.mark.slow
def test_every_kilobyte_of_a_corpus_may_be_its_end(config, corpus):
    check_corpus(config, corpus, flipped=12, cut=None)


def check_corpus(config: Path, root: Path, flipped: int, cut: int | None) -> None:
    before = everything(config, root)
    wrong, found = [], 0
    for seed, path in enumerate(files_of(root)):
        size = path.stat().st_size
        damages = [*flips(size, seed, flipped), *cuts(size, seed, cut)]
        if path.name in PAGES:
            damages = damages[:1]
        for damage in damages:
            found += 1
            wrong.append(unnamed(root, path, damage, lambda: everything(config, root) == before))
    assert [line for line in wrong if line] == []
    assert found > 200
    assert everything(config, root) == before


def test_what_is_only_kept_for_speed_or_for_people_is_made_again(config, corpus):
    """A build goes through with all of it damaged, and publishes what it published."""
    wanted = (corpus / "manifest.json").read_bytes()
    for path in files_of(corpus):
        if path.name in (*PAGES, *CACHES):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 4
            path.write_bytes(content)
    build(plan_of(config), LocalCluster(), lambda line: None)
    assert (corpus / "manifest.json").read_bytes() == wanted


@pytest.mark.parametrize("kind", ["parts", "files", "quarantine", "filter.web", "shards"])
def test_nothing_is_forgotten_by_way_of_a_damaged_file(kind, corpus, tmp_path):
    """Forgetting reads and writes again all that holds a document: damage is named, and not written into what replaces it."""
    root = tmp_path / "out"
    shutil.copytree(corpus, root)
    table = next(open_corpus(root).parts("web")).table(("id", DROP))
    identifier = table["id"][table[DROP].to_pylist().index(None)].as_py().hex()
    place = kind if kind in ("filter.web", "shards") else f"read.web-*/{kind}"
    file = next(root.glob(f"{place}-*/**/*.arrow" if "*" not in place else f"{place}/*.arrow"))
    for damage in (*flips(file.stat().st_size, 1, 1), ("cut", file.stat().st_size // 2)):
        with damaged(file, *damage), pytest.raises(CorruptFileError, match=re.escape(str(file))):
            forget(root, [identifier] if not read_tombstone(root)["pending"] else [], [])


class Died(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", ["dedup_minhash", "shards", "text_hash.web"])
def test_damage_to_what_an_interrupted_step_left_is_found_or_changes_nothing(
    step, config, corpus, tmp_path, monkeypatch
):
    """Receipts and intermediate files: the step goes on, and publishes the same manifest or names the file."""
    root, place = tmp_path / "out", next(corpus.glob(f"{step}-*"))
    wanted, directory = (place / "manifest.json").read_bytes(), root / place.name
    shutil.copytree(corpus, root, ignore=shutil.ignore_patterns(place.name, "report.*"))
    again = tmp_path / "small.yaml"
    again.write_text(config.read_text().replace(f"output: {corpus}", f"output: {root}"))
    real, writes, published = store.write_atomic, [0, 0], [b""]

    def dying(path, content):
        writes[0] += path.is_relative_to(directory)
        if path == directory / "manifest.json":
            published[0] = content
        if path == directory / "manifest.json" or writes[0] == writes[1]:
            raise Died
        real(path, content)

    def go_on(until: int = -1) -> bool:
        writes[:], published[0] = [0, until], b""
        with pytest.raises(Died):
            build(plan_of(again), LocalCluster(), lambda line: None)
        return published[0] == wanted

    monkeypatch.setattr(store, "write_atomic", dying)
    assert go_on()
    last = writes[0]
    wrong, damages = [], 0
    for until in sorted({last // 2, last}):
        shutil.rmtree(directory)
        go_on(until)
        saved = tmp_path / f"saved-{until}"
        directory.rename(saved)
        for seed, file in enumerate(files_of(saved)):
            size = file.stat().st_size
            for damage in (*flips(size, seed, 1), ("cut", size // 2)):
                shutil.copytree(saved, directory)
                wrong.append(unnamed(root, directory / file.relative_to(saved), damage, go_on))
                shutil.rmtree(directory)
                damages += 1
        directory.mkdir()
    assert [line for line in wrong if line] == []
    assert damages > 3
