"""Filter rules and documents without a value: which rules drop or keep them, the published rule sets, and the
notices of the plan.
"""

import base64
import random
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError
from pipelines.__main__ import main
from pipelines.contracts.reads import Column
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import Inventory
from pipelines.planning.plan import make_plan
from pipelines.stages import STAGES
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import RULE_SETS, Rule
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.measure.signal_columns import PEER_SIGNALS, SIGNALS

ROOT = Path(__file__).parents[4]
# Article 1 of the Universal Declaration of Human Rights.
AMHARIC = "የሰው ልጅ ሁሉ ሲወለድ ነጻና በክብርና በመብትም እኩልነት ያለው ነው። የተፈጥሮ ማስተዋልና ሕሊና ስላለው አንዱ ሌላውን በወንድማማችነት መንፈስ መመልከት ይገባዋል።"
TIBETAN = (
    "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང༌། "
    "ཐོབ་ཐངགི་རང་དབང་འདྲ་མཉམ་དུ་ཡོད་ལ། "
    "ཁོང་ཚོར་རང་བྱུང་གི་བློ་རྩལ་དང་བསམ་ཚུལ་བཟང་པོ་འདོན་པའི་འོས་བབས་ཀྱང་ཡོད།"
)


def without_language(count):
    """Yield `count` texts of each kind in which resiliparse identifies no language: base64, lists of numbers,
    Amharic, Tibetan.
    """
    chance = random.Random(5)
    for _ in range(count):
        yield base64.encodebytes(chance.randbytes(1500)).decode()
        yield "\n".join(" ".join(str(chance.randrange(10**6)) for _ in range(8)) for _ in range(40))
        for text in (AMHARIC, TIBETAN):
            words = text.split()
            chance.shuffle(words)
            yield " ".join(words)


def dropped(stage, **columns):
    return stage.annotate(pa.table(columns))["drop"].to_pylist()


def filter_of(*rules):
    return parse(Filter, {"rules": list(rules)}, "c.yaml: steps[0].filter")


@pytest.mark.parametrize("recipe", ["multilingual.yaml", "demo.yaml", "web_en.yaml"])
def test_recipes_drop_what_has_no_language(recipe):
    one_model = ["steps.language.models=[resiliparse]", "steps.language.fallback_below=null"]
    config = load_corpus_config(ROOT / "corpora_configs" / recipe, one_model)
    texts = list(without_language(5))
    docs = pa.table({"text": pa.array(texts, pa.large_string())})
    entry = next(e.stage for e in config.steps if Column("language") in e.stage.reads() and e.stage_name == "filter")
    language = next(e.stage for e in config.steps if e.stage_name == "language")
    measured = language.annotate(docs)
    rules = tuple(rule for rule in entry.rules if rule.signal is not None and rule.signal.startswith("language"))
    assert dropped(Filter(rules), **{name: measured[name] for name in measured.column_names}) == ["language"] * len(
        texts
    )


def test_a_text_without_a_language_has_a_language_that_rules_can_name():
    docs = pa.table({"text": pa.array(["", "12 + 34", AMHARIC], pa.large_string())})
    columns = STAGES["language"]().annotate(docs)
    language = columns["language"]
    assert language.to_pylist() == ["und"] * 3
    assert columns["language_score"].to_pylist() == [0.0] * 3
    assert dropped(filter_of({"signal": "language", "one_of": ["en", "und"]}), language=language) == [None] * 3
    assert dropped(filter_of({"signal": "language", "none_of": ["und"]}), language=language) == ["language"] * 3
    short = {"signal": "n", "at_least": 5, "when": {"language": ["und"]}}
    assert dropped(filter_of(short), language=language, n=[4, 5, 6]) == ["n", None, None]


@pytest.mark.parametrize(
    ("test", "drops"),
    [
        ({"at_least": 1}, True),
        ({"at_most": 1}, False),
        ({"at_least": 0, "at_most": 1}, True),
        ({"one_of": [1]}, True),
        ({"none_of": [1]}, False),
        ({"at_least_quantile": 0.5}, True),
        ({"at_most_quantile": 0.5}, False),
        ({"per": "lang", "at_least": {"en": 1, "default": 0}}, True),
        ({"per": "lang", "at_most": {"en": 1, "default": 2}}, False),
        ({"per": "lang", "at_least": {"en": 0, "default": None}, "at_most": 1}, True),
        ({"per": "lang", "at_least": {"de": 0, "default": None}, "at_most": 1}, False),
    ],
)
@pytest.mark.parametrize("null", [None, "drop", "keep"])
def test_what_null_does(test, drops, null):
    stage = filter_of({"signal": "x", **test, **({"null": null} if null else {})})
    docs = pa.table({"x": pa.array([None], pa.float32()), "lang": ["en"]})
    found = stage.decide(docs, {request: {} for request in stage.quantiles()})["drop"].to_pylist()
    assert found == (["x"] if (drops if null is None else null == "drop") else [None])


def test_a_condition_that_is_null_judges_nothing():
    stage = filter_of({"signal": "n", "at_least": 5, "when": {"lang": ["en"]}})
    assert dropped(stage, n=[1, 1, 9], lang=["en", None, "en"]) == ["n", None, None]


@pytest.mark.parametrize("name", RULE_SETS)
def test_published_rule_sets_keep_what_has_no_value(name):
    """In the papers and their code, an undefined ratio drops nothing; documents without words are judged by
    their counts.
    """
    stage = Filter((Rule(rules=name),))
    types = {column.name: column.type for column in (*SIGNALS, *PEER_SIGNALS)}
    nothing = {
        c: pa.nulls(1, types.get(c, pa.bool_() if c == "url_blocked" else pa.int32()))
        for c in (each.name for each in stage.reads())
    }
    assert dropped(stage, **nothing) == [None]
    with pytest.raises(ConfigError, match="has its own tests and names; remove null"):
        filter_of({"rules": name, "null": "drop"})


def test_a_document_without_words_goes_by_its_counts():
    measured = QualitySignals().annotate(pa.table({"text": pa.array(["?!"], pa.large_string())}))
    columns = {name: measured[name] for name in measured.column_names}
    assert dropped(filter_of({"rules": "gopher_quality@massivetext"}), **columns) == ["gopher_quality.word_count"]


def corpus_file(tmp_path, steps):
    path = tmp_path / "c.yaml"
    sources = "".join(f"  - {{name: {name}, root: {tmp_path}, format: text}}\n" for name in "ab")
    path.write_text(f"name: c\noutput: {tmp_path}/out\nsources:\n{sources}steps:\n{steps}")
    return path


def test_the_plan_names_rules_without_a_null_setting(tmp_path, capsys):
    rules = [
        "{signal: mean_word_length, at_least: 3}",
        "{signal: mean_word_length, at_most: 9, name: long_words}",
        "{signal: alpha_word_ratio, at_least: 0.8, null: drop}",
        "{signal: word_count, at_least: 9}",
        "{signal: url, none_of: [x]}",
        "{signal: source, none_of: [x]}",
        "{rules: gopher_quality@massivetext}",
    ]
    path = corpus_file(tmp_path, f"  - quality_signals: {{}}\n  - filter: [{', '.join(rules)}]\n")
    assert main(["plan", str(path), "--check"]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert [line.partition(";")[0] for line in warnings] == [
        "warning: filter: mean_word_length has no value in some documents, and the rule drops them",
        "warning: filter: mean_word_length has no value in some documents, and the rule 'long_words' keeps them",
        "warning: filter: url has no value in some documents, and the rule keeps them",
    ]
    assert all("`null: drop` or `null: keep`" in line for line in warnings)
    (tmp_path / "a.txt").write_text("some text")
    assert main(["plan", str(path)]) == 0
    assert " ".join(capsys.readouterr().out.split()).count("has no value in some documents") == 3


@pytest.mark.parametrize(
    ("measure", "rule", "message"),
    [
        (
            "  - quality_signals: {}\n    sources: [a]\n", "{signal: word_count, at_least: 9}",
            "step filter: the rule 'word_count' tests 'word_count', which no step writes for the source b",
        ),
        ("  - quality_signals: {}\n    sources: [a]\n", "{signal: word_count, at_least: 9, when: {source: [a]}}", None),
        ("  - language: {}\n", "{signal: language, at_least: 0.5}", "language holds string, at_least and at_most need numbers"),
        ("  - language: {}\n", "{signal: language_score, one_of: [en]}", "language_score holds float, which cannot be any"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_judge_is_refused_by_the_plan(tmp_path, measure, rule, message):
    config = load_corpus_config(corpus_file(tmp_path, f"{measure}  - filter: [{rule}]\n"))
    inventories = {source.name: Inventory((), ()) for source in config.sources}
    if message is None:
        assert make_plan(config, inventories)
    else:
        with pytest.raises(ConfigError, match=message):
            make_plan(config, inventories)
