"""`thresholds` on columns whose bounds are computed by hand, the YAML that it prints as a step of a corpus
file, and its errors.
"""

import json

import pytest
import yaml

from pipelines.__main__ import main
from pipelines.contracts.lineage import open_corpus
from pipelines.explore.language_thresholds import language_thresholds
from pipelines.stages.decide.rules import RULE_SETS

SETS = ("fineweb@paper", "gopher_quality@massivetext", "gopher_repetition@massivetext")
MEASURED = sorted({rule.signal for name in SETS for rule in RULE_SETS[name]})

# By language and column, a value for each document; other columns are 0.05 everywhere.
EN, KO, ZH, JA, DE, UND = 10, 20, 5, 1, 6, 30
VALUES = {
    ("en", "p"): [0.2, 0.4, 0.6, 0.8, 0.5, 0.5, 0.2, 0.4, 0.6, 0.8],
    ("ko", "p"): [0.8, 0.9, 0.9, 1.0] * 5,
    ("zh", "p"): [0.99] * ZH,
    ("en", "mean_word_length"): [11, 2, 3, 4, 5, 6, 7, 8, 9, 10],  # Gopher's bounds, 3 and 10, drop the 2 and the 11
    ("ko", "mean_word_length"): [0.5 * k for k in range(KO, 0, -1)],
    ("zh", "mean_word_length"): [1.0, 2.0, 3.0, 4.0, 5.0],
    ("en", "alpha_word_ratio"): [0.5, 0.7, 0.8, 0.9, *[1.0] * 6],  # 0.8 drops two
    ("ko", "alpha_word_ratio"): [k / 20 for k in range(1, KO + 1)],
    ("en", "dup_line_ratio"): [0.0, 0.2] * 5,  # mean and deviation are 0.1, so 0.3 is two deviations above the mean
    ("ko", "dup_line_ratio"): [0.4, 0.6] * 10,
    ("zh", "dup_line_ratio"): [0.5] * ZH,
    **{("de", name): [None] * DE for name in ("p", *MEASURED)},
    ("ko", "terminal_line_ratio"): [k / 100 for k in range(1, KO + 1)],
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("thresholds")
    rows = []
    for language, count in (("en", EN), ("ko", KO), ("zh", ZH), ("ja", JA), ("de", DE), ("und", UND)):
        for row in range(count):
            fields = {name: VALUES.get((language, name), [0.05] * count)[row] for name in ("p", *MEASURED)}
            rows.append({"text": f"{language} document {row}", "lang": language} | fields)
    (root / "docs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    fields = {name: {"field": name, "type": "float"} for name in MEASURED}
    names = {"language": {"field": "lang"}, "language_score": {"field": "p", "type": "float"}}
    config = {
        "name": "tongues",
        "output": str(root / "out"),
        "sources": [
            {"name": "docs", "root": str(root), "include": ["docs.jsonl"], "format": "jsonl", "part_bytes": 300}
        ],
        "steps": [{"record_fields": {"columns": names | fields}}],
    }
    (root / "c.yaml").write_text(yaml.safe_dump(config))
    assert main(["build", str(root / "c.yaml"), "--in-process"]) == 0
    assert len(list(open_corpus(root / "out").parts())) > 5
    return root


def bounds(corpus, *names, **options):
    found = language_thresholds(corpus / "out", names, least=5, **options)
    return {rule.get("name", rule["signal"]): rule for rule in found.rules}


def test_language_score_is_median_minus_deviation_from_03_to_09(corpus):
    rule = bounds(corpus, "language_score")["language_score"]
    # ko: the median 0.9 minus the deviation of 0.8, 0.9, 0.9, 1.0, the root of 0.02 / 4; zh: 0.99; en: 0.5 - 0.2
    assert rule["at_least"] == {"en": 0.3, "ko": pytest.approx(0.9 - 0.005**0.5), "zh": 0.9, "default": 0.3}
    assert rule["per"] == "language"


def test_quality_bounds_drop_the_share_that_they_drop_in_the_reference(corpus):
    rules = bounds(corpus, "gopher_quality@massivetext")
    words = rules["gopher_quality.mean_word_length"]
    assert words["at_least"] == {"en": 3, "ko": 1.5, "zh": 1.0, "default": 3}  # two of 20, none of five
    assert words["at_most"] == {"en": 10, "ko": 9.0, "zh": 5.0, "default": 10}
    assert rules["gopher_quality.alpha_word_ratio"]["at_least"] == {"en": 0.8, "ko": 0.25, "zh": 0.05, "default": 0.8}
    assert rules["gopher_quality.word_count"]["at_least"] == 50  # the same in all languages
    assert rules["gopher_quality.stop_word_count"]["at_least"] == {"en": 2, "default": None}  # of English words


@pytest.mark.long
def test_repetition_bounds_are_as_many_deviations_from_the_mean(corpus):
    rules = bounds(corpus, "gopher_repetition@massivetext")
    lines = rules["gopher_repetition.dup_line_ratio"]["at_most"]
    assert lines == {"en": 0.3, "ko": 0.7, "zh": 0.5, "default": 0.3}
    assert set(rules["gopher_repetition.top_2gram_char_ratio"]["at_most"].values()) == {0.2}  # no deviation in English
    assert rules["gopher_repetition.dup_paragraph_ratio"]["at_most"] == 0.3


def test_line_bounds_drop_a_tenth(corpus):
    rules = bounds(corpus, "fineweb@paper")
    assert rules["fineweb.terminal_line_ratio"]["at_least"]["ko"] == 0.03
    assert rules["fineweb.terminal_line_ratio"]["at_least"]["en"] == RULE_SETS["fineweb@paper"][0].at_least
    assert not isinstance(rules["fineweb.short_line_ratio"]["at_most"], dict)


def test_another_reference(corpus):
    words = bounds(corpus, "gopher_quality@massivetext", reference="ko")["gopher_quality.mean_word_length"]
    assert words["at_least"] == {"en": 4.0, "ko": 3, "zh": 2.0, "default": 3}  # 5 of 20 are below 3: 2 of 10, 1 of 5


@pytest.mark.long
def test_the_yaml_is_a_step_of_a_corpus_file(corpus, tmp_path, capsys):
    assert main(["thresholds", str(corpus / "out"), "language_score", *SETS, "--least", "5"]) == 0
    printed = capsys.readouterr().out
    assert "# documents: en 10, ko 20, zh 5\n# fewer than 5 values, so `default` holds: de 0, ja 1\n" in printed
    config = yaml.safe_load((corpus / "c.yaml").read_text())
    config["steps"] += yaml.safe_load(printed)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config | {"output": str(tmp_path / "out")}))
    assert main(["build", str(tmp_path / "c.yaml"), "--in-process"]) == 0
    parts = [part.table(("language", "drop", "language_score")) for part in open_corpus(tmp_path / "out").parts()]
    rows = [row for part in parts for row in part.to_pylist()]
    scored = [row["language"] for row in rows if row["drop"] == "language_score"]
    assert (
        scored == ["en"] * 2 + ["ko"] * 5 + ["ja"] + ["de"] * DE + ["und"] * UND
    )  # 0.2, 0.8, the default 0.3; null is dropped


def test_bad_input(corpus, tmp_path, capsys):
    def error(*arguments):
        assert main(["thresholds", *map(str, arguments)]) == 2
        return capsys.readouterr().err

    out = corpus / "out"
    assert "got 'gopher_quality@masivetext'; did you mean 'gopher_quality@massivetext'?" in error(
        out, "gopher_quality@masivetext"
    )
    assert "allowed: language_score, gopher_quality@massivetext" in error(out, "c4@paper")
    assert "--least: got 0, expected 1 or more" in error(out, "language_score", "--least", 0)
    few = error(out, "gopher_quality@massivetext")
    assert "has 10 values of mean_word_length in 'en'" in few
    assert "expected 1,000 or more; add documents, or use --reference or --least" in few
    missing = error(out, "gopher_quality@datatrove", "--least", 5)
    assert "no source of the corpus 'tongues' has both language and mean_word_length_datatrove" in missing
    assert "add the steps `language` and `peer_signals`" in missing
