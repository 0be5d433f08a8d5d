"""Reading some rows of a part equals selecting them from the whole part, and shards apply edits to kept
documents only.
"""

import pyarrow as pa
import pytest

import pipelines.contracts.parts as parts
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.stages.materialise.overlap import measure_overlap
from pipelines.stages.materialise.validation_split import ValidationSplit


def built(path, *overrides):
    config = load_corpus_config(path, overrides)
    corpus = build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    return corpus, list(open_corpus(config.place).parts())


@pytest.mark.long
def test_rows_of_a_part_equal_those_of_the_whole(corpus_file):
    _, found = built(corpus_file)
    columns = ("id", "text", "edited_text", "drop", "word_count", "url")
    for part in found:
        whole = part.table(columns)
        rows = part.kept_rows()
        assert part.table(columns, rows) == whole.take(rows).combine_chunks()
        assert part.table(columns, rows)["drop"].null_count == len(rows)
        assert part.table(columns, pa.array([], pa.int64())).num_rows == 0


@pytest.mark.long
def test_shards_edit_kept_documents_only_and_load_a_tokenizer_once(corpus_file, monkeypatch):
    from tokenizer.encode import Encoder

    corpus_file.write_text(
        corpus_file.read_text().replace("steps:\n", "steps:\n  - pii: {entities: [EMAIL_ADDRESS]}\n")
    )
    edited, loaded = [], []
    apply, load = parts.apply_edits, Encoder.load.__func__
    monkeypatch.setattr("pipelines.building.publish.write_report", lambda *arguments: False)
    monkeypatch.setattr(parts, "apply_edits", lambda text, edits: edited.append(len(text)) or apply(text, edits))
    monkeypatch.setattr(Encoder, "load", classmethod(lambda cls, *given: loaded.append(given) or load(cls, *given)))
    corpus, _ = built(corpus_file, "steps.shards.validation_share=0")
    kept = sum(shard.documents for shard in corpus.shard_sets["shards"].shards)
    assert max(edited) <= kept
    assert len(loaded) == 1


class Refusing(LocalCluster):
    def map(self, function, items, label):
        raise AssertionError(f"{function.__name__} runs")


@pytest.mark.long
def test_no_overlap_is_measured_where_nothing_is_held_out(corpus_file):
    corpus, found = built(corpus_file, "steps.shards.validation_share=0")
    none = {"validation": 0, "near_copies_in_training": 0}
    assert measure_overlap(ValidationSplit("cluster", 0.0, 0), found, None, Refusing()) == {"code": none, "web": none}
    assert {shard.split for shard in corpus.shard_sets["shards"].shards} == {"train"}
    with pytest.raises(AssertionError, match="scatter_split_bands runs"):
        measure_overlap(ValidationSplit("cluster", 0.1, 0), found, None, Refusing())
