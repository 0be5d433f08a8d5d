"""A small corpus with many kinds of files that a build writes, and a digest of what can be read from it."""

import json
from dataclasses import asdict
from pathlib import Path

from gristmill.storage.store import digest
from pipelines.building.build import ensure_owner
from pipelines.building.read_step import file_indexes
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.forecast import forecast
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import Plan, make_plan
from tests.conftest import paragraph


def plan_of(config: Path) -> Plan:
    loaded = load_corpus_config(config, ())
    return make_plan(loaded, take_inventory(loaded.sources, loaded.place))


def write_corpus(place: Path) -> Path:
    """Write two small sources, and a corpus file whose build makes parts, edits, clusters, URLs, a tokenizer
    and shards.
    """
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


def everything(config: Path, root: Path) -> str:
    """Return a digest of what is read from a corpus through its lineage, for training, and for the plan of
    another build.
    """
    from tokenizer.encode import Encoder
    from trainers.data.job_interface import verified_tokenizer
    from trainers.data.packed_corpus import open_corpus as open_for_training

    corpus = open_corpus(root)
    found = [asdict(corpus.manifest), *(step.manifest.facts_on_disk() for step in corpus.steps)]
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
        found += [str(step.directory.verify(record)) for record in step.manifest.files]
    ensure_owner(root, "small", write=False)
    plan = plan_of(config)
    forecast(plan, [root])
    return digest([*found, [step.fingerprint for step in plan.steps]])
