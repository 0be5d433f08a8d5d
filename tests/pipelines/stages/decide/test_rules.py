"""The named rule sets, test by test, at thresholds copied by hand from the publications and code that define
them.
"""

import numpy as np
import pyarrow as pa
import pytest

from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import RULE_SETS, Rule
from pipelines.stages.measure.peer_signals import PeerSignals
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.measure.signal_columns import PEER_SIGNALS, SIGNALS

# set: (reason without the family, signal, values kept, values dropped), in the order of the source's tests.
NGRAMS = [
    ("top_2gram_char_ratio", 0.2),
    ("top_3gram_char_ratio", 0.18),
    ("top_4gram_char_ratio", 0.16),
    ("dup_5gram_char_ratio", 0.15),
    ("dup_6gram_char_ratio", 0.14),
    ("dup_7gram_char_ratio", 0.13),
    ("dup_8gram_char_ratio", 0.12),
    ("dup_9gram_char_ratio", 0.11),
    ("dup_10gram_char_ratio", 0.1),
]


def at_most(bound, signal):
    return (signal, signal, [0.0, bound - 0.001, bound], [bound + 0.0001, 1.0])


def gopher_quality(suffix):
    rows = [
        ("word_count", [50, 51, 100_000], [0, 49, 100_001]),
        ("mean_word_length", [3.0, 3.01, 10.0], [2.99, 10.01]),
        ("hash_to_word_ratio", [0.0, 0.1], [0.1001, 1.0]),
        ("ellipsis_to_word_ratio", [0.0, 0.1], [0.1001, 2.0]),
        ("bullet_line_ratio", [0.0, 0.9], [0.9001, 1.0]),
        ("ellipsis_line_ratio", [0.0, 0.3], [0.3001, 1.0]),
        ("alpha_word_ratio", [0.8, 1.0], [0.0, 0.7999]),
        ("stop_word_count", [2, 8], [0, 1]),
    ]
    return [(signal + suffix, signal + suffix, kept, dropped) for signal, kept, dropped in rows]


def c4(source, sentences, order):
    rows = {
        "sentences": (f"sentences_{source}", f"c4_sentences_{source}", [sentences, 99], [0, sentences - 1]),
        "lorem": (f"lorem_ipsum_{source}", f"c4_lorem_ipsum_{source}", [0], [1, 7]),
        "curly": (f"curly_{source}", f"c4_curly_{source}", [0], [1, 7]),
    }
    return [rows[name] for name in order.split()]


TABLE = {
    "gopher_quality@massivetext": gopher_quality(""),
    "gopher_quality@datatrove": gopher_quality("_datatrove"),
    "gopher_repetition@massivetext": [
        at_most(0.3, "dup_line_ratio"),
        at_most(0.3, "dup_paragraph_ratio"),
        at_most(0.2, "dup_line_char_ratio"),
        at_most(0.2, "dup_paragraph_char_ratio"),
        *(at_most(bound, signal) for signal, bound in NGRAMS),
    ],
    "gopher_repetition@datatrove": [
        ("empty", "n_chars", [1, 2], [0]),
        at_most(0.3, "dup_paragraph_ratio_datatrove"),
        at_most(0.2, "dup_paragraph_char_ratio_datatrove"),
        at_most(0.3, "dup_line_ratio_datatrove"),
        at_most(0.2, "dup_line_char_ratio_datatrove"),
        *(at_most(bound, f"{signal}_datatrove") for signal, bound in NGRAMS),
    ],
    "c4@paper": c4("paper", 3, "sentences lorem curly"),
    "c4@tfds": c4("tfds", 3, "lorem curly sentences"),
    "c4@datatrove": c4("datatrove", 5, "lorem curly sentences"),
    "fineweb@paper": [  # "<= 0.12", ">= 0.1", ">= 0.67" are dropped
        ("terminal_line_ratio", "terminal_line_ratio", [0.1201, 1.0], [0.0, 0.12]),
        ("dup_line_char_ratio", "dup_line_char_ratio", [0.0, 0.0999], [0.1, 1.0]),
        ("short_line_ratio", "short_line_ratio", [0.0, 0.6699], [0.67, 1.0]),
    ],
    "fineweb@datatrove": [
        ("empty", "n_lines", [1, 2], [0]),
        ("terminal_line_ratio_datatrove", "terminal_line_ratio_datatrove", [0.12, 1.0], [0.0, 0.1199]),
        at_most(0.67, "short_line_ratio_datatrove"),
        at_most(0.01, "dup_line_char_ratio_fineweb_datatrove"),
        at_most(0.3, "newline_to_word_ratio_datatrove"),
    ],
    "refinedweb_url@paper": [
        ("url_blocked", "url_blocked", [False], [True]),
        ("url_strict_words", "url_strict_words", [0], [1]),
        ("url_hard_words", "url_hard_words", [0], [1]),
        ("url_soft_words", "url_soft_words", [0, 1], [2]),
    ],
}
URL_COLUMNS = pa.schema(
    [("url_blocked", pa.bool_()), *((f"url_{k}_words", pa.int32()) for k in ("strict", "hard", "soft"))]
)
COLUMNS = {field.name: field for field in (*SIGNALS, *PEER_SIGNALS, *URL_COLUMNS)}


def drops(name, rows):
    stage = Filter((Rule(rules=name),))
    schema = pa.schema([COLUMNS[signal] for signal in (each.name for each in stage.reads())])
    return stage.annotate(pa.Table.from_pylist(rows, schema=schema))["drop"].to_pylist()


def test_every_set_has_a_table_and_its_tests_are_those_of_the_table_in_order():
    assert {name: [(rule.reason(), rule.signal) for rule in rules] for name, rules in RULE_SETS.items()} == {
        name: [(f"{name.split('@')[0]}.{reason}", signal) for reason, signal, _, _ in rows]
        for name, rows in TABLE.items()
    }


@pytest.mark.parametrize("name", TABLE)
def test_a_set_keeps_and_drops_at_the_thresholds_of_its_source(name):
    good = {signal: kept[0] for _, signal, kept, _ in TABLE[name]}
    for reason, signal, kept, dropped in TABLE[name]:
        assert drops(name, [{**good, signal: value} for value in [*kept, None]]) == [None] * (len(kept) + 1), signal
        expected = [f"{name.split('@')[0]}.{reason}"] * len(dropped)
        assert drops(name, [{**good, signal: value} for value in dropped]) == expected, signal
    worst = {signal: dropped[-1] for _, signal, _, dropped in TABLE[name]}
    assert drops(name, [worst]) == [f"{name.split('@')[0]}.{TABLE[name][0][0]}"], "the first test gives the reason"


def test_all_sets_fit_into_one_filter():
    Filter(tuple(Rule(rules=name) for name in RULE_SETS)).check()


@pytest.mark.parametrize("ratio", [0.1, 0.67, 0.12])
def test_a_bound_that_drops_itself_is_the_next_float32(ratio):
    from pipelines.stages.decide.rule_sets import above, below

    assert above(ratio) == np.nextafter(np.float32(ratio), np.float32(1))
    assert below(ratio) == np.nextafter(np.float32(ratio), np.float32(0))


def verdicts(name, *texts):
    table = pa.table({"text": pa.array(texts, pa.large_string())})
    stage = PeerSignals() if name.endswith(("@tfds", "@datatrove")) else QualitySignals()
    return Filter((Rule(rules=name),)).annotate(stage.annotate(table))["drop"].to_pylist()


LINE = "One two three four five six."


# A page of three good lines has 3 sentences, of five 5. By hand from the sources: which page goes, and for what.
@pytest.mark.parametrize(
    ("extra", "paper", "tfds", "datatrove"),
    [
        ("", None, None, None),
        ("Lorem Ipsum dolor sit amet elit.", "lorem_ipsum_paper", "lorem_ipsum_tfds", "lorem_ipsum_datatrove"),
        ("Here is a { bracket in text.", "curly_paper", "curly_tfds", "curly_datatrove"),
        # A line that was dropped before drops no page, but in the paper, which speaks of any page:
        ("Lorem ipsum without an end mark", "lorem_ipsum_paper", None, None),
        ("if (x) { return y }", "curly_paper", None, None),
        ("Lorem ipsum.", "lorem_ipsum_paper", None, None),
        ("Lorem ipsum dolor.", "lorem_ipsum_paper", None, "lorem_ipsum_datatrove"),  # 3 words
        ("This is how javascript opens a {.", "curly_paper", None, None),
        (
            "See our privacy policy and a { there.",
            "curly_paper",
            "curly_tfds",
            "curly_datatrove",
        ),  # { comes before policy
        ("x" * 1001 + " has a { in its line.", "curly_paper", None, None),
        # A marker is removed first:
        ("Lorem [1]ipsum dolor sit amet elit.", None, "lorem_ipsum_tfds", "lorem_ipsum_datatrove"),
    ],
)
def test_the_order_of_c4s_tests_on_a_page(extra, paper, tfds, datatrove):
    page = "\n".join([LINE] * 2 + [extra] + [LINE] * 3)
    found = [verdicts(f"c4@{source}", page)[0] for source in ("paper", "tfds", "datatrove")]
    assert found == [reason and f"c4.{reason}" for reason in (paper, tfds, datatrove)]


def test_c4_counts_sentences_of_the_lines_that_are_left():
    three = f"{LINE} {LINE}\nNo end mark here at all\n{LINE}\nToo few words."
    assert verdicts("c4@paper", three, LINE, "") == [None, "c4.sentences_paper", "c4.sentences_paper"]
    assert verdicts("c4@tfds", three, LINE, "") == [None, "c4.sentences_tfds", "c4.sentences_tfds"]
    assert verdicts("c4@datatrove", three, f"{three} {LINE}", "") == [
        "c4.sentences_datatrove",  # 4 sentences: "Too few words." has 3 words
        None,
        "c4.sentences_datatrove",
    ]
