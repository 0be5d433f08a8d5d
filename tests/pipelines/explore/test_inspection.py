"""Inspection of documents: their whole history, safe on a terminal, with personal data hidden unless requested."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from gristmill.console import Page
from gristmill.errors import UserError
from gristmill.terminal import printable
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.reads import TEXT, Input
from pipelines.contracts.stage import PartStage
from pipelines.explore.inspect_cluster import _show_differences, show_cluster
from pipelines.explore.inspect_document import show_document, show_rule
from pipelines.planning.corpus import CorpusConfig, StepConfig, load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.record_field import RecordField
from pipelines.reading.sources.source import Source
from pipelines.stages.decide.c4_lines import C4Lines
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.dedup.dedup_exact import DedupExact
from pipelines.stages.dedup.dedup_minhash import DedupMinhash
from pipelines.stages.measure.minhash_signatures import MinhashSignatures
from pipelines.stages.measure.quality_signals import SIGNALS, QualitySignals
from pipelines.stages.measure.record_fields import RecordFields
from pipelines.stages.measure.text_hash import TextHash
from pipelines.stages.measure.url_rules import UrlRules
from pipelines.stages.pii.pii import Pii

HOSTILE = (
    "<script>alert(1)</script> [bold]not markup[/bold] :smile:\n"
    "\u202eright to left override, \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627\n"
    "family \U0001f468\u200d\U0001f469\u200d\U0001f467 and 東京\n"
)
MAILED = "Grüße! Write to jane.roe@example.org, or to joe@example.com."
WEB: list[dict[str, object]] = [
    {
        "text": HOSTILE,
        "url": "https://a.example/\x1b]0;owned\x07",
        "title": "\x1b[2J[red]x",
        "size": 12345678901234567890,
        "half": "\ud800",
    },
    {
        "text": MAILED,
        "author": "Jane <jane.roe@example.org>",
        "url": "https://A.com/u/jane.roe@example.org",
        "seen": ["at noon\n4012888888881881", {"jane.roe@example.org": 1}, "https://a.com/?by=jane.roe%40example.org"],
    },
    {"text": "A copy of a copy."},
    {"text": "A copy of a copy."},
    {"text": f"Spam from spammer@example.net. {'x' * 9000}", "url": "spam", "author": "spammer@example.net"},
    {"text": "line\n" * 500},
    *({"text": f"More spam, number {i}", "url": "spam"} for i in range(20)),
]


@dataclass(frozen=True)
class Mentions(PartStage):
    """A stage that writes columns of strings inside lists, structs and maps."""

    version: ClassVar[int] = 1

    def reads(self) -> tuple[Input, ...]:
        return (TEXT,)

    def writes(self) -> pa.Schema:
        struct, mapping = pa.struct([("by", pa.string()), ("on", pa.int64())]), pa.map_(pa.string(), pa.string())
        return pa.schema([("mentions", pa.list_(pa.string())), ("first_mention", struct), ("by_name", mapping)])

    def annotate(self, docs: pa.Table) -> pa.Table:
        mail = "jane.roe@example.org"
        row = {"mentions": [mail, "joe"], "first_mention": {"by": mail, "on": None}, "by_name": [(mail, mail)]}
        return pa.Table.from_pylist([row] * docs.num_rows, self.writes())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("inspection")
    (root / "web").mkdir()
    lines = [*map(json.dumps, WEB), "not json"]
    (root / "web" / "[red]w.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (root / "code").mkdir()
    (root / "code" / "mail.py").write_text("# by jane.roe@example.org\n", encoding="utf-8")
    sources = (
        Source("web", str(root / "web"), "jsonl", licence="CC0-1.0", origin="https://web.example"),
        Source("code", str(root / "code"), "text"),
    )
    steps = (
        StepConfig("url_rules", UrlRules(), "url_rules", ("web",)),
        StepConfig("filter", Filter((Rule(signal="url", none_of=("spam",), name="spam"),)), "filter"),
        StepConfig("text_hash", TextHash(normalisation="none"), "text_hash"),
        StepConfig("dedup_exact", DedupExact(), "dedup_exact"),
        StepConfig("mentions", Mentions(), "mentions", ("web",)),
        StepConfig("pii", Pii(entities=("EMAIL_ADDRESS", "CREDIT_CARD")), "pii", ("web",), where="filter"),
    )
    config = CorpusConfig("seen", str(root / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, root / "out")), LocalCluster(), lambda line: None)
    return root / "out"


def story(capsys: pytest.CaptureFixture[str], corpus: Path, record: int | str, raw: bool = False) -> str:
    show_document(corpus, f"web/[red]w.jsonl#{record}" if isinstance(record, int) else record, raw=raw)
    return safe(capsys.readouterr().out)


def safe(output: str) -> str:
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", output)
    return output


def test_a_kept_document_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    out = story(capsys, corpus, 0)
    assert out.startswith("web/[red]w.jsonl#0\nkept\n")
    for line in (
        r"https://a.example/\x1b]0;owned\x07",
        r"\x1b[2J[red]x",
        "12345678901234567890",
        "CC0-1.0",
        "https://web.example",
        "  | <script>alert(1)</script> [bold]not markup[/bold] :smile:",
        "  | \\u202eright to left override, \u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627",
        "  | family \U0001f468\u200d\U0001f469\u200d\U0001f467 and 東京",
        "none: the corpus has no shards step",
    ):
        assert line in out


def test_edits_are_listed_and_applied(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    out = story(capsys, corpus, 1)
    assert "jane" not in out
    assert "  | Grüße! Write to <EMAIL_ADDRESS>, or to <EMAIL_ADDRESS>." in out
    assert "bytes 18 to 38: '<EMAIL_ADDRESS>'" in out
    assert re.search(r"meta\.author +Jane <<EMAIL_ADDRESS>>", out)
    assert re.search(r"pii_email_address +2\n", out)
    assert re.search(r"url_normal +https://a.com/u/<EMAIL_ADDRESS>\n", out)
    raw = story(capsys, corpus, 1, raw=True)
    assert f"  | {MAILED}" in raw
    assert "'jane.roe@example.org' -> '<EMAIL_ADDRESS>'" in raw
    assert "Jane <jane.roe@example.org>" in raw


def test_personal_data_inside_values_is_hidden(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    shown = {
        "meta.seen": r'["at noon\n<CREDIT_CARD>", {"<EMAIL_ADDRESS>": 1}, "https://a.com/?by=<EMAIL_ADDRESS>"]',
        "mentions": "2 values: <EMAIL_ADDRESS>, joe",
        "first_mention": "by: <EMAIL_ADDRESS>, on: -",
        "by_name": "1 values: ('<EMAIL_ADDRESS>', '<EMAIL_ADDRESS>')",
    }
    out = story(capsys, corpus, 1)
    for name, value in shown.items():
        assert re.search(rf"\n +{name} +{re.escape(value)}\n", out)
    assert re.search(r"\n +first_mention +by: jane.roe@example.org, on: -\n", story(capsys, corpus, 1, raw=True))


def test_a_dropped_document_says_why_and_shows_no_personal_data(
    capsys: pytest.CaptureFixture[str], corpus: Path
) -> None:
    # The pii step never saw it: its `where` left out what filter drops.
    out = story(capsys, corpus, 4)
    assert out.startswith("web/[red]w.jsonl#4\ndropped by spam\n")
    assert "drops: spam: url is spam, kept is none of spam" in out
    assert "spammer" not in out
    assert "  | Spam from <EMAIL_ADDRESS>. xxx" in out
    assert "(5,027 more bytes not shown)" in out
    assert "spammer@example.net" in story(capsys, corpus, 4, raw=True)


def test_personal_data_in_a_column_that_a_rule_judges_is_hidden(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "web.jsonl").write_text('{"text": "A text.", "author": "jane.roe@example.org"}\n')
    (tmp_path / "c.yaml").write_text(
        f"name: judged\noutput: {tmp_path}/out\nsources:\n"
        f"  - {{name: web, root: {tmp_path}/web.jsonl, format: jsonl, columns: {{author: string}}}}\n"
        "steps:\n  - filter: [{signal: author, one_of: [bob]}]\n  - pii: {level: contact}\n"
    )
    config = load_corpus_config(tmp_path / "c.yaml")
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    for raw, author in ((False, "<EMAIL_ADDRESS>"), (True, "jane.roe@example.org")):
        out = story(capsys, tmp_path / "out", "web/web.jsonl#0", raw)
        assert f"drops: author: author is {author}, kept is one of bob" in out
        show_rule(tmp_path / "out", "author", 1, raw=raw)
        out += capsys.readouterr().out
        assert re.search(rf"\n  author +{author}\n", out)
        assert ("jane" in out) is raw


def test_the_winner_of_a_cluster_is_named(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    assert "drops: dedup_exact, in favour of web/[red]w.jsonl#2\n" in story(capsys, corpus, 3)
    out = story(capsys, corpus, 2)
    assert "keeps: it is the one kept of its cluster" in out
    assert re.search(r"exact_cluster_size +2\n", out)


def test_long_documents_are_clipped_by_lines(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    out = story(capsys, corpus, 5)
    assert out.count("  | line\n") == 80
    assert f"({5 * 500 - 80 * 5 + 1:,} more bytes not shown)" in out


def test_a_quarantined_record(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    out = story(capsys, corpus, len(WEB))
    assert "set aside when it was read: not_json: the line, element or document is not JSON" in out
    assert re.search(r"size +8 bytes", out)


def test_hex_ids_and_sources_without_pii_step(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    out = story(capsys, corpus, "code/mail.py#0")
    assert "no step looked for personal data in this source" in out
    identifier = re.search(r"id +([0-9a-f]{32})\n", out)
    assert identifier is not None
    assert story(capsys, corpus, identifier[1]) == out


def test_samples_of_a_rule_are_always_the_same(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    def sample(count: int, raw: bool = False) -> str:
        show_rule(corpus, "spam", count, raw=raw)
        return safe(capsys.readouterr().out)

    out = sample(3)
    assert out == sample(3)
    assert "21 documents dropped (web 21), 3 of them here" in out
    assert re.search(r"url +spam\n +kept is +none of spam\n", out)
    names = re.findall(r"^web/\[red\]w\.jsonl#\d+$", out, re.MULTILINE)
    assert len(names) == 3
    everything = sample(100)
    assert re.findall(r"^web/.*#\d+$", everything, re.MULTILINE)[:3] == names
    assert everything.count("  | More spam, number") == 20
    assert "spammer@" not in everything
    assert "spammer@" in sample(100, raw=True)


def test_samples_of_clusters_and_quarantine(capsys: pytest.CaptureFixture[str], corpus: Path) -> None:
    show_rule(corpus, "dedup_exact", 5, raw=False)
    out = safe(capsys.readouterr().out)
    assert re.search(r"exact_cluster +web/\[red\]w\.jsonl#2\n", out)
    assert "  | A copy of a copy." in out
    show_rule(corpus, "not_json", 5, raw=False)
    out = safe(capsys.readouterr().out)
    assert "not_json: the line, element or document is not JSON\n1 records set aside (web 1), 1 of them here" in out
    assert re.search(rf"8 bytes +web/\[red\]w\.jsonl#{len(WEB)}\n", out)


def test_unknown_rules_are_told_with_counts(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        UserError, match=r"did you mean 'spam'\?; there are: spam \(21\), dedup_exact \(1\), not_json \(1\)"
    ):
        show_rule(corpus, "spamm", 5, raw=False)
    with pytest.raises(UserError, match="--samples: got 0"):
        show_rule(corpus, "spam", 0, raw=False)
    assert main(["inspect", str(corpus), "--doc", "web/nothing#0"]) == 2
    assert "error: web/nothing#0: the source 'web' has no file 'nothing'" in capsys.readouterr().err


def test_records_outside_the_sample_are_no_rule(tmp_path: Path) -> None:
    (tmp_path / "web.jsonl").write_text("".join(f'{{"text": "Text {number}."}}\n' for number in range(50)) + "no json")
    sources = (Source("web", str(tmp_path / "web.jsonl"), "jsonl", sample=0.5),)
    steps = (StepConfig("text_hash", TextHash(normalisation="none"), "text_hash"),)
    config = CorpusConfig("sampled", str(tmp_path / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, tmp_path / "out")), LocalCluster(), lambda line: None)
    with pytest.raises(UserError, match="--rule 'not_sampled': "):
        show_rule(tmp_path / "out", "not_sampled", 5, raw=False)


def test_printable_leaves_text_alone_and_shows_the_rest() -> None:
    kept = "tab? no. é 東京 \u05e9 \U0001f468\u200d\U0001f469 \u0646\u200c\u0647 [b] \\ <b>"
    assert printable(kept, lines=True) == kept
    assert (
        printable("a\nb\tc\x00\x7f\x9b\u2066\ufeff\ud800\U000e0041")
        == "a\\x0ab\\x09c\\x00\\x7f\\x9b\\u2066\\ufeff\\ud800\\U000e0041"
    )
    assert printable("a\nb\tc\r", lines=True) == "a\nb\tc\\x0d"


def test_a_cluster_is_shown_with_its_differences(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(80)]
    mailed = [*words[:30], "jane.roe@example.org", *words[31:]]
    texts = [" ".join(words), " ".join(mailed), " ".join(words[:78]) + " \x1b[2J [red]x", "apart " * 30]
    stages = {
        "minhash_signatures": MinhashSignatures(),
        "dedup_minhash": DedupMinhash(bands=28, rows=4),
        "pii": Pii(entities=("EMAIL_ADDRESS",)),
    }
    built_with(tmp_path, texts, stages)
    assert main(["inspect", str(tmp_path / "out"), "--cluster", "web/a.jsonl#2"]) == 0
    out = safe(capsys.readouterr().out)
    assert out.startswith("minhash_cluster: 3 members in this corpus, kept is web/a.jsonl#0\n")
    for line in (
        "  | w0 w1 w2",
        "  - w30\n  + <EMAIL_ADDRESS>\n",
        "  - w78 w79\n  + [2J [red]x\n",
        "dropped by dedup_minhash",
    ):
        assert line in out
    assert "jane" not in out
    assert (
        "jane"
        in (main(["inspect", str(tmp_path / "out"), "--cluster", "web/a.jsonl#1", "--raw"]), capsys.readouterr().out)[1]
    )
    with pytest.raises(UserError, match="in no cluster of duplicates"):
        show_cluster(tmp_path / "out", "web/a.jsonl#3", 5, raw=False)


def test_columns_that_are_called_cluster_and_hold_none_are_passed_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stages = {
        "record_fields": RecordFields({"topic_cluster": RecordField("text", type="string")}),
        "text_hash": TextHash(), "dedup_exact": DedupExact(),
    }  # fmt: skip
    built_with(tmp_path, ["the same text " * 9] * 2, stages)
    assert main(["inspect", str(tmp_path / "out"), "--cluster", "web/a.jsonl#1"]) == 0
    assert capsys.readouterr().out.startswith("exact_cluster: 2 members in this corpus")


def built_with(place: Path, texts: list[str], stages: dict[str, Any]) -> Path:
    (place / "web").mkdir()
    (place / "web" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sources = (Source("web", str(place / "web"), "jsonl"),)
    steps = tuple(StepConfig(name, stage, name) for name, stage in stages.items())
    config = CorpusConfig("near", str(place / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, place / "out")), LocalCluster(), lambda line: None)
    return place / "out"


@pytest.mark.parametrize(("knobs", "said"), [({}, True), ({"verify": "signature", "threshold": 0.5}, False)])
def test_samples_of_near_duplicates_note_that_clusters_are_dropped_whole(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, knobs: dict[str, Any], said: bool
) -> None:
    words = [f"word{number}" for number in range(60)]
    texts = [" ".join(words[:cut]) for cut in (60, 57, 60, 54)]
    corpus = built_with(
        tmp_path,
        texts,
        {"minhash_signatures": MinhashSignatures(), "dedup_minhash": DedupMinhash(bands=28, rows=4, **knobs)},
    )
    show_rule(corpus, "dedup_minhash", 2, raw=False)
    assert ("verify: none drops whole clusters" in capsys.readouterr().out) is said


def test_columns_of_a_step_are_sorted_and_aligned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    corpus = built_with(tmp_path, ["some words of a text"], {"quality_signals": QualitySignals()})
    show_document(corpus, "web/a.jsonl#0", raw=False)
    lines = capsys.readouterr().out.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("    all_caps_word_ratio"))
    shown = lines[first : first + len(SIGNALS)]
    names = [line.split()[0] for line in shown]
    assert names == sorted(SIGNALS.names)
    widest = 4 + max(map(len, names)) + 1
    assert all(line[widest - 1] == " " and line[widest] != " " for line in shown)


def test_a_member_names_the_one_it_was_dropped_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(120)]
    texts = [" ".join(words), " ".join([*words[40:], *(f"x{i}" for i in range(40))])]
    texts.append(" ".join([*texts[1].split()[:-2], "y", "z"]))
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    sources = (Source("web", str(tmp_path / "web"), "jsonl"),)
    stages = {
        "minhash_signatures": MinhashSignatures(),
        "dedup_minhash": DedupMinhash(bands=100, rows=1, threshold=0.8, verify="jaccard"),
    }
    steps = tuple(StepConfig(name, stage, name) for name, stage in stages.items())
    config = CorpusConfig("near", str(tmp_path / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, tmp_path / "out")), LocalCluster(), lambda line: None)
    assert main(["inspect", str(tmp_path / "out"), "--cluster", "web/a.jsonl#2"]) == 0
    cluster = " ".join(safe(capsys.readouterr().out).split())
    assert "3 members in this corpus, kept is web/a.jsonl#0" in cluster
    assert "similarity to web/a.jsonl#1" in cluster
    assert main(["inspect", str(tmp_path / "out"), "--doc", "web/a.jsonl#2"]) == 0
    document = " ".join(safe(capsys.readouterr().out).split())
    assert "in favour of web/a.jsonl#1" in document


@pytest.mark.timeout(120)
def test_differences_of_texts_of_few_words_take_no_minutes(capsys: pytest.CaptureFixture[str]) -> None:
    _show_differences(Page(), ["a", "b"] * 1000, ["b", "a", "a"] * 666)
    assert "  - a b a b" in capsys.readouterr().out


def test_a_document_that_edits_emptied_shows_the_text_before(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Personal data is also replaced in the text shown, although the pii step saw only the empty text."""
    menu = "Home | News | Ask jane.roe@example.org"
    records = [{"text": f"{menu}\nEdition {number}"} for number in range(3)] + [{"text": "This line has five words."}]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    sources = (Source("web", str(tmp_path / "web.jsonl"), "jsonl"),)
    steps = (
        StepConfig("c4_lines", C4Lines(rules="tfds"), "c4_lines"),
        StepConfig("pii", Pii(entities=("EMAIL_ADDRESS",), text="edited_text"), "pii"),
    )
    config = CorpusConfig("emptied", str(tmp_path / "out"), sources, steps)
    build(make_plan(config, take_inventory(sources, tmp_path / "out")), LocalCluster(), lambda line: None)
    show_rule(tmp_path / "out", "c4_lines.empty", 2, raw=False)
    sample = safe(capsys.readouterr().out)
    size = len(menu) + len("\nEdition 0")
    shown = "  | Home | News | Ask <EMAIL_ADDRESS>\n  | Edition "
    assert sample.count(f"  (nothing left after c4_lines; {size} bytes before it:)\n{shown}") == 2
    out = story(capsys, tmp_path / "out", "web/web.jsonl#0")
    assert (
        f"; {size} bytes stored, 0 edited)\n  (nothing left after c4_lines; {size} bytes before it:)\n{shown}0" in out
    )
    assert "jane" not in sample + out
    show_rule(tmp_path / "out", "c4_lines.empty", 1, raw=True)
    raw = capsys.readouterr().out
    assert menu in raw
    assert "nothing left" not in raw
