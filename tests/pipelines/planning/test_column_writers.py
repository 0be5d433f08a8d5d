"""If no earlier step writes a column, the error names the stage that would write it."""

import pytest

from gristmill.errors import ConfigError
from pipelines.planning.column_writers import writers
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import Inventory
from pipelines.planning.plan import make_plan

COUNT = "{signal: word_count, at_least: 5}"
SHARE = "{signal: language_share, at_least: 0.5}"
TYPO = "{signal: word_cuont, at_least: 5}"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (f"  - filter: [{COUNT}]", "'word_count', which no earlier step writes; the stage quality_signals writes it"),
        (
            "  - quality_signals: {}\n  - filter: [{rules: gopher_quality@datatrove}]",
            "'word_count_datatrove', which no earlier step writes; the stage peer_signals writes it: "
            "put `peer_signals: {}` before filter",
        ),
        (
            "  - peer_signals: {}\n  - filter: [{rules: fineweb@datatrove}]",
            "'n_lines', which no earlier step writes; the stage quality_signals writes it",
        ),
        (
            "  - quality_signals: {text: edited_text, prefix: e_}\n  - filter: [{rules: fineweb@datatrove, prefix: e_}]",
            "'e_terminal_line_ratio_datatrove', which no earlier step writes; the stage peer_signals writes it: "
            "put `peer_signals: {text: edited_text, prefix: e_}` before filter",
        ),
        ("  - dedup_minhash: {}", "'minhash', which no earlier step writes; the stage minhash_signatures writes it"),
        ("  - dedup_exact: {}", "the stage text_hash writes it: put `text_hash: {}` before dedup_exact"),
        ("  - dedup_url: {}", "the stage url_rules writes it"),
        (
            f"  - language: {{}}\n  - filter: [{SHARE}]",
            "the stage language with paragraphs: true writes it: put `language: {paragraphs: true}` before filter",
        ),
        (
            "  - dedup_minhash: {}\n  - minhash_signatures: {}",
            "minhash_signatures, a later step, writes it: move minhash_signatures before dedup_minhash",
        ),
        (f"  - quality_signals: {{}}\n  - filter: [{TYPO}]", "did you mean 'word_count'"),
        (f"  - filter: [{TYPO}]", "did you mean 'word_count'"),
    ],
)
def test_a_missing_column_names_the_stage_that_writes_it(tmp_path, steps, message):
    path = tmp_path / "c.yaml"
    path.write_text(
        f"name: c\noutput: {tmp_path}/out\nsources:\n  - {{name: a, root: {tmp_path}, format: text}}\nsteps:\n{steps}\n"
    )
    with pytest.raises(ConfigError) as error:
        make_plan(load_corpus_config(path), {"a": Inventory((), ())})
    assert message in str(error.value)


def test_every_stage_that_writes_columns_by_default_is_known():
    found = {stage.partition(" ")[0] for stage in writers().values()}
    assert {
        "quality_signals",
        "peer_signals",
        "language",
        "minhash_signatures",
        "text_hash",
        "url_rules",
        "dedup_minhash",
    } <= found
