"""The report shows every measurement of a run once, and escapes untrusted text."""

import json
import re
from html.parser import HTMLParser

import pytest
import yaml

from gristmill.config import plain
from gristmill.errors import UserError
from gristmill.storage.store import write_json
from trainers.__main__ import main
from trainers.recipes import RECIPES
from trainers.report.read_runs import read_runs
from trainers.report.run_charts import Curves
from trainers.report.run_page import differences, ledger_rows, render, summary, write_report
from trainers.runs.progress import Progress
from trainers.runs.run import sealed

EVIL = "<script>alert(1)</script>\x1b[31m\u202e"


def losses(loss, source="web"):
    entry = {"loss": loss, "bits_per_byte": loss / 2, "tokens": 10}
    return {"loss": loss, "bits_per_byte": loss / 2, "sources": {source: entry}}


def step_fields(step, loss, source="web"):
    data = {source: {"requested_tokens": 10.0, "tokens": 10 * step, "sequences": 1, "epochs": 0.1, "padding": 2 * step}}
    return {
        "step": step, "steps": 9, "tokens": 100 * step, **losses(loss, source), "learning_rate": 1e-3 * step,
        "gradient_norm": 1.0 + step, "tokens_per_second": 50.0, "mfu": 0.4, "memory_bytes": 10**9, "data": data,
        "router_balance": 0.5 * step,
    }  # fmt: skip


def make_run(directory, parts, source="web", **changes):
    """Make a run of parts, each given as (the step after which it begins, the losses of its steps). A
    validation follows the last step of each part.
    """
    config = plain(RECIPES["llama_tiny"]())
    config["batch"] = {"tokens": 2048, "sequences": 16}
    config["data"]["corpora"] = ["corpus"]
    config |= changes
    directory.mkdir(parents=True)
    (directory / "resolved.yaml").write_bytes(sealed(yaml.safe_dump(config).encode()))
    marks = {"code": "1", "config": "2", "corpus": "3", "tokenizer": "4"}
    write_json(
        directory / "run.json", {"format": "gristmill-run/1", "name": "x", "specials": {}, "fingerprints": marks}
    )
    progress = Progress(directory / "log.jsonl", None)
    for first, values in parts:
        if first:
            progress.write("resume", step=first, tokens=1, message=f"from step {first}")
        progress.write("start", step=first, parameters=127296, workers=2, device="cpu")
        for number, loss in enumerate(values, first + 1):
            progress.write("step", **step_fields(number, loss, source))
        if values:
            progress.write("validation", step=first + len(values), tokens=1, **losses(values[-1] + 0.5, source))
    progress.close()
    return directory


def test_scores_of_different_versions_are_marked(tmp_path):
    runs = [make_run(tmp_path / name, [(0, [3.0, 2.0])]) for name in ("a", "b")]
    for run, versions in zip(runs, ({}, {"version": "2"}), strict=True):
        score = {"value": 0.5, "low": 0.4, "high": 0.6}
        scores = {"core.mean": score, "piqa": {**score, **versions}, "boolq": score}
        progress = Progress(run / "log.jsonl", None)
        progress.write("evaluation", step=2, name="core", checkpoint="x", scores=scores, message="")
        progress.close()
    titles = [chart.title for chart in Curves(read_runs(runs)).evaluations()]
    note = ": not comparable, versions 1 and 2 of piqa"
    assert titles == [f"core.mean{note}", f"piqa{note}", "boolq"]
    assert [chart.title for chart in Curves(read_runs(runs[:1])).evaluations()] == ["core.mean", "piqa", "boolq"]


class Strict(HTMLParser):
    """An HTML parser that checks that tags are closed in order, and collects all text."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def parsed(page):
    parser = Strict()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_steps_that_were_done_twice_count_the_second_time(tmp_path):
    directory = make_run(tmp_path / "run", [(0, [9.0, 8.0, 7.0, 6.0]), (2, [5.0, 4.0, 3.0])])
    (run,) = read_runs([directory])
    assert [(event["step"], event["loss"]) for event in run.steps] == [(1, 9), (2, 8), (3, 5), (4, 4), (5, 3)]
    assert [(event["step"], event["loss"]) for event in run.validations] == [(5, 3.5)]
    found = summary(run)
    assert (found["step"], found["tokens"], found["loss"], found["resumed"]) == (5, 500, 3.0, 1)
    assert (found["best"]["loss"], found["tokens_per_second"], found["mfu"]) == (3.5, 50.0, 0.4)
    page = parsed(render([run]))
    assert "3.5000" in page.text
    assert "resumed from step 2" in page.text
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", render([run]))
    for wanted in (
        "Loss",
        "Learning rate",
        "Gradient norm",
        "Tokens per second",
        "Model FLOPs",
        "memory",
    ):
        assert any(wanted in title for title in titles), wanted
    assert "Padding, share of all positions up to here" in titles
    assert "Router balance" in titles  # whatever a step records is drawn


def test_untrusted_text_is_escaped(tmp_path):
    make_run(tmp_path / "<img src=x>", [(0, [3.0, 2.0])], source=EVIL, name=EVIL)
    make_run(tmp_path / "other", [(0, [3.0, 2.0])], source="web")
    progress = Progress(tmp_path / "other" / "log.jsonl", None)
    progress.write("warning", message=f"</td>{EVIL}")
    progress.close()
    for paths in ([tmp_path / "<img src=x>"], [tmp_path / "<img src=x>", tmp_path / "other"]):
        text = render(read_runs(paths))
        page = parsed(text)
        assert not {tag for tag, _ in page.tags} & {"script", "img", "a1", "link", "iframe"}
        assert "<script>alert(1)</script>\\x1b[31m\\u202e" in page.text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert all(a.get("href", "#").startswith("#") and "src" not in a for _, a in page.tags)
        policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
        assert policy.startswith("default-src 'none'")


def test_credentials_in_an_address_stay_out(tmp_path):
    data = {"corpora": ["https://me:hidden@host/corpus"], "weights": {"web": 1.0}}
    text = render(read_runs([make_run(tmp_path / "run", [(0, [3.0])], data=data)]))
    assert "https://***@host/corpus" in text
    assert "hidden" not in text.partition("</style>")[2].replace('overflow="hidden"', "").replace("aria-hidden", "")


def test_runs_are_overlaid_and_their_settings_compared(tmp_path):
    paths = [make_run(tmp_path / name / "run", [(0, [3.0, 2.0])], seed=seed) for seed, name in enumerate("abc")]
    runs = read_runs(paths)
    assert [run.name for run in runs] == ["a/run", "b/run", "c/run"]
    assert differences(runs) == [("seed", ["0", "1", "2"])]
    page = parsed(render(runs))
    lines = [attributes["stroke"] for tag, attributes in page.tags if tag == "path"]
    assert {"var(--series-0)", "var(--series-1)", "var(--series-2)"} == set(lines)
    assert "seed" in page.text
    with pytest.raises(UserError, match="named twice"):
        read_runs([paths[0], paths[0]])


def figures(page):
    """Return {title of a chart: numbers of the runs drawn in it}."""
    parts = re.findall(r"<figcaption>(.*?)</figcaption>(.*?)</figure>", page, re.DOTALL)
    return {title: set(map(int, re.findall(r"var\(--series-(\d)\)", drawn))) for title, drawn in parts}


def add_document_fields(directory, value, window=256):
    progress = Progress(directory / "log.jsonl", None)
    entry = {"loss": 1.0, "tokens": 10, "document_bits_per_byte": value}
    whole = {"loss": 1.0, "document_bits_per_byte": value, "document_window": window, "sources": {"web": entry}}
    progress.write("validation", step=3, tokens=1, **whole)
    progress.close()
    return directory


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"objective": {"kind": "masked"}}, "objective (causal, masked)"),
        ({"data": {"sequence_length": 64}}, "sequence length (128, 64)"),
        ({"data": {"packing": "documents"}}, "packing (concatenate, documents)"),
        ({"data": {"weights": {"web": 2.0}}}, "mixture"),
    ],
    ids=["objective", "length", "packing", "mixture"],
)
def test_losses_of_different_things_are_never_drawn_over_one_another(tmp_path, changes, why):
    """Two of three runs are comparable and share a chart. The chart of whole documents compares all runs that
    have likelihoods.
    """
    data = plain(RECIPES["llama_tiny"]())["data"] | {"corpora": ["corpus"]}
    changes = {**changes, "data": data | changes.get("data", {})}
    runs = [make_run(tmp_path / n, [(0, [3.0, 2.0])], **(changes if n == "b" else {"data": data})) for n in "abc"]
    for directory in runs if "objective" not in changes else (runs[0], runs[2]):
        add_document_fields(directory, 1.25)
    page = render(read_runs(runs))
    drawn = figures(page)
    assert drawn["Loss, nats per target token: a, c"] == {0, 2}
    assert drawn["Loss, nats per target token: b"] == {1}
    assert drawn["Bits per byte of whole documents"] == ({0, 2} if "objective" in changes else {0, 1, 2})
    assert f"the runs differ in {why}" in page
    assert ("no likelihood of text: b." in page) == ("objective" in changes)
    of_one_source = "Loss, nats per target token"
    assert (drawn.get(of_one_source) == {0, 1, 2}) == (why == "mixture")  # a source's own loss has no mixture


def test_documents_measured_with_another_window_are_not_compared(tmp_path):
    runs = [add_document_fields(make_run(tmp_path / n, [(0, [3.0])]), 1.0, w) for n, w in (("a", 256), ("b", 128))]
    drawn = figures(render(read_runs(runs)))
    assert drawn["Bits per byte of whole documents: a"] == {0}
    assert drawn["Bits per byte of whole documents: b"] == {1}


def test_runs_of_other_step_sizes_share_an_axis_of_tokens(tmp_path):
    one = make_run(tmp_path / "one", [(0, [3.0, 2.0])])
    two = make_run(tmp_path / "two", [(0, [3.0, 2.0])], batch={"tokens": 1024, "sequences": 8})
    text = render(read_runs([one, two]))
    assert "the runs&#39; steps differ in size" in text
    (circles,) = [re.findall(r'<circle cx="([\d.]+)"', part) for part in text.split("<figure")[1:2]]
    assert float(circles[0]) == pytest.approx(2 * float(circles[1]), abs=0.2)


@pytest.mark.parametrize("parts", [[], [(0, [])]], ids=["no log", "no step"])
def test_a_run_without_a_finished_step_says_so(tmp_path, parts):
    directory = make_run(tmp_path / "run", parts)
    (directory / "log.jsonl").unlink() if not parts else None
    output = tmp_path / "page.html"
    assert main(["report", str(directory), "--output", str(output)]) == 0
    page = parsed(output.read_text())
    assert "No finished step has been logged yet" in page.text
    assert "none yet" in page.text
    assert "figure" not in {tag for tag, _ in page.tags}


def test_the_command_reports_what_it_needs(tmp_path, capsys, monkeypatch):
    first, second = (make_run(tmp_path / name, [(0, [3.0])]) for name in ("a", "b"))
    assert main(["report", str(first)]) == 0
    assert (first / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert main(["report", str(first), str(second)]) == 0
    assert (tmp_path / "report-a-b.html").read_text().startswith("<!DOCTYPE html>")
    monkeypatch.setattr("trainers.commands.examine._NAMED_RUNS", 1)
    assert main(["report", str(second), str(first)]) == 0
    assert (tmp_path / "report-b-and-1-more.html").exists()
    capsys.readouterr()
    assert main(["report", str(tmp_path)]) == 2
    assert "no run here" in capsys.readouterr().err


def test_the_ledger_and_checkpoints_are_shown(tmp_path):
    directory = make_run(tmp_path / "run", [(0, [3.0])])
    sources = {
        "web": {"requested_tokens": 70.4, "tokens": 75, "sequences": 4, "epochs": 1.5, "padding": 25},
        "code": {"requested_tokens": 29.6, "tokens": 25, "sequences": 1, "epochs": 0.25, "padding": 0},
    }
    ledger = {"format": "gristmill-ledger/1", "step": 1, "first_sample": 0, "samples": 5, "sources": sources}
    write_json(directory / "ledger.json", ledger)
    (directory / "checkpoints" / "step-00000001").mkdir(parents=True)
    (directory / "checkpoints" / "step-00000001" / "model.safetensors").write_bytes(b"x" * 1500)
    web, code = ledger_rows(ledger)
    assert (web["name"], web["share"], web["waste"], web["off"]) == ("web", 0.75, 0.25, pytest.approx(4.6))
    assert (code["share"], code["waste"]) == (0.25, 0.0)
    page = parsed(render(read_runs([directory])))
    assert "25.00 %" in page.text
    assert "checkpoints/step-00000001 (1.5 kB)" in page.text


def test_a_skipped_step_is_marked_unless_it_was_done_again(tmp_path):
    directory = make_run(tmp_path / "run", [(0, [3.0])])
    progress = Progress(directory / "log.jsonl", None)
    progress.write("skipped", step=2, message="step 2 is not finite")
    progress.close()
    (run,) = read_runs([directory])
    assert summary(run)["skipped"] == 1
    assert "<title>run: step 2 is not finite</title>" in render([run])
    with open(directory / "log.jsonl", "a") as log:
        start = {"event": "start", "time": 1.0, "step": 1, "workers": 1, "device": "cpu"}
        log.write(json.dumps(start) + '\n{"event": "step", "st')
    (run,) = read_runs([directory])
    assert summary(run)["skipped"] == 0


@pytest.mark.long
def test_a_report_of_a_long_run_stays_small(tmp_path):
    directory = make_run(tmp_path / "run", [(0, [3.0 - step / 10_000 for step in range(5_000)])])
    write_report([directory], directory / "report.html")
    assert (directory / "report.html").stat().st_size < 400_000


def test_a_run_records_its_parent(tmp_path):
    make_run(tmp_path / "a", [(0, [3.0, 2.0])])
    assert "Began from" not in render(read_runs([tmp_path / "a"]))
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    del record["checksum"]
    marks = {"fingerprints": {"corpus": "c0ffee", "code": "1.2+abc"}, "checkpoint": "deadbeef", "step": 1200}
    parent = {"path": f"/runs/{EVIL}", "kind": "run", "first_step": 1200, "tokens": 9, "updates": 0, **marks}
    write_json(tmp_path / "a" / "run.json", {**record, "parent": parent})
    page = render(read_runs([tmp_path / "a"]))
    block = page[page.index("Began from") :]
    for text in (
        "a run",
        "/runs/&lt;script&gt;",
        "1,200, from which steps and data continue",
        "deadbeef",
        "c0ffee",
        "1.2+abc",
    ):
        assert text in block
    weights = {"path": "/hf", "kind": "hugging_face", "first_step": 0, "fingerprints": {"weights": "f00d"}}
    write_json(tmp_path / "a" / "run.json", {**record, "parent": weights})
    block = render(read_runs([tmp_path / "a"])).partition("Began from")[2]
    assert "a Hugging Face directory" in block
    assert "f00d" in block
    assert "<dt>step</dt>" not in block


def test_sources_without_validation_loss_are_named(tmp_path):
    make_run(tmp_path / "a", [(0, [3.0])])
    assert "so without validation loss" not in render(read_runs([tmp_path / "a"]))
    progress = Progress(tmp_path / "a" / "log.jsonl", None)
    progress.write("step", **step_fields(2, 2.0, "notes"))
    progress.close()
    assert "and so without validation loss: notes." in render(read_runs([tmp_path / "a"]))
