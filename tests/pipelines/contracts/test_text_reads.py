"""Which tasks of a build read the stored text. These reads dominate the time of large builds."""

from collections import Counter

import pytest

import pipelines.contracts.parts as annotations
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan


class Noting(LocalCluster):
    running = ""

    def map(self, function, items, label):
        return super().map(self._run, [(function, item) for item in items], lambda pair: label(pair[1]))

    def _run(self, pair):
        self.running = pair[0].__name__
        return pair[0](pair[1])


@pytest.mark.long
def test_deduplication_and_the_overlap_of_splits_read_no_text(corpus_file, monkeypatch):
    monkeypatch.setattr("pipelines.building.publish.write_report", lambda *arguments: False)
    cluster, read = Noting(), Counter()
    plain = annotations.read_table

    def noted(directory, record, columns, schema):
        if "text" in schema:
            read[cluster.running] += 1
        return plain(directory, record, columns, schema)

    monkeypatch.setattr(annotations, "read_table", noted)
    config = load_corpus_config(corpus_file)
    build(make_plan(config, take_inventory(config.sources, config.place)), cluster, lambda line: None)
    once = {
        "annotate_documents",
        "measure_text",
        "sample_documents",
        "measure_kept",
        "encode_documents",
        "count_part",
    }
    assert read.keys() == once  # six times, as docs/scale.md says
    parts = read["encode_documents"]
    assert read["measure_kept"] == read["count_part"] == parts, "a task reads the text of its part more than once"
