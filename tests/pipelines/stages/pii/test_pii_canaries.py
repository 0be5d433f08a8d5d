"""Planted personal data appears in no message, log, manifest or report of a build and of the commands that
follow.
"""

import json

import pytest

from pipelines.__main__ import main
from tests.conftest import paragraph

CANARIES = {
    "EMAIL_ADDRESS": "canary.bird@corp.example.com",
    "US_SSN": "219-09-9998",
    "CREDIT_CARD": "4111 1111 1111 1111",
    "PHONE_NUMBER": "(650) 253-0000",
    "API_KEY": "AKIA" + "Q7X2CANARY" + "Q7X2Q7",
    "PRIVATE_KEY": "-----BEGIN PRIVATE KEY-----\nCanary" + "Ab3d" * 12 + "\n-----END PRIVATE KEY-----",
    "URL_CREDENTIALS": "ftp://canaryuser:canarypassword@host.example.com",
}
TELLTALES = ["canary", "CANARY", "Canary", "219-09", "4111 1111", "253-0000"]
KEY = "a key that nobody may ever see 0123456789"
YAML = """\
name: canaries
output: {root}/out
sources:
  - {{name: web, root: {root}/web.jsonl, format: jsonl}}
steps:
  - quality_signals: {{}}
  - filter:
      - {{signal: word_count, at_least: 60}}
  - pii: {{entities: {entities}, {knobs}}}
    where: filter
  - filter:
      - {{signal: pii_email_address, at_most: 1, name: many_addresses}}
    name: counts
  - minhash_signatures: {{}}
  - dedup_minhash: {{}}
  - learn_tokenizer: {{vocab_size: 420, sample_bytes: 20000}}
  - shards: {{tokenizer: learn_tokenizer, split_by: content, validation_share: 0.2}}
"""
ACTIONS = {  # placeholders where nothing else is said
    "replace": "actions: {EMAIL_ADDRESS: pseudonym, PHONE_NUMBER: hmac, API_KEY: mask}, key: env:TEST_CORPUS_KEY",
    "annotate": "action: annotate",
}


def documents():
    """Return documents with planted data: some kept, one too short, one dropped by its PII count, a
    near-duplicate, and one with data in other fields.
    """
    planted = " and ".join(f"is {value} here" for value in CANARIES.values())
    kept = [f"{paragraph(seed)} {planted} {seed}" for seed in range(8)]
    many = f"{paragraph(99)} {planted} a.canary@corp.example.com b.canary@corp.example.com"
    beside = {"text": paragraph(50), "url": CANARIES["URL_CREDENTIALS"], "by": CANARIES["EMAIL_ADDRESS"]}
    near = kept[0].replace("canary.bird", "canary.fish")
    return [*({"text": text} for text in [*kept, near, many, f"Short: {planted}"]), beside]


@pytest.mark.long
@pytest.mark.parametrize("knobs", ACTIONS.values(), ids=ACTIONS)
def test_no_output_of_a_build_shows_a_canary(tmp_path, capfd, logged, monkeypatch, knobs):
    monkeypatch.setenv("TEST_CORPUS_KEY", KEY)
    lines = [json.dumps(document) for document in documents()]
    (tmp_path / "web.jsonl").write_text("\n".join([*lines, lines[0][:-9]]))  # the last is no JSON: quarantined
    yaml = tmp_path / "canaries.yaml"
    yaml.write_text(YAML.format(root=tmp_path, entities=list(CANARIES), knobs=knobs).replace(", }", "}"))
    out = str(tmp_path / "out")
    (tmp_path / "ids").write_text("web/web.jsonl#1\n")
    for command in (
        ["plan", str(yaml)],
        ["build", str(yaml), "--in-process"],
        ["plan", str(yaml)],
        *(["inspect", out, "--doc", f"web/web.jsonl#{record}"] for record in (0, 8, 9, 10, 11)),
        *(["inspect", out, "--rule", rule] for rule in ("word_count", "many_addresses", "dedup_minhash", "not_json")),
        ["inspect", out, "--cluster", "web/web.jsonl#8"],
        ["compare-rules", out],
        ["export", out, str(tmp_path / "export")],
        ["whatif", str(yaml), "--set", "counts.many_addresses.at_most=0"],
        ["whatif", str(yaml), "--set", "counts.many_addresses.at_most=9", "--full"],
    ):
        assert main(command) in (None, 0), command
    said = written(tmp_path)
    assert main(["forget", out, "--ids", str(tmp_path / "ids")]) == 0
    said |= {f"{name} after forget": text for name, text in written(tmp_path).items()}
    said |= {"output": "".join(capfd.readouterr()), "logs": "\n".join(logged)}
    assert {"report.html", "report.json", "manifest.json"} <= {name.split("/")[-1] for name in said}
    shown = [(where, word) for where, text in said.items() for word in (*TELLTALES, KEY) if word in text]
    assert not shown
    assert "not redacted, may hold personal data" in said["output"]
    assert "EMAIL_ADDRESS" in said["output"] or "example." in said["output"]


def written(folder):
    return {str(path): path.read_text() for path in (folder / "out").rglob("*") if path.suffix in READABLE}


READABLE = {".json", ".jsonl", ".html", ".txt", ".md", ".csv", ".log", ".yaml"}


def test_a_build_that_fails_does_not_quote_the_document(tmp_path, capfd, logged, monkeypatch):
    from presidio_analyzer.predefined_recognizers import EmailRecognizer

    def fail(self, text):
        raise ValueError(f"cannot judge {text}")

    monkeypatch.setattr(EmailRecognizer, "validate_result", fail)
    (tmp_path / "web.jsonl").write_text("\n".join(map(json.dumps, documents())))
    yaml = tmp_path / "canaries.yaml"
    yaml.write_text(YAML.format(root=tmp_path, entities=list(CANARIES), knobs="").replace(", }", "}"))
    assert main(["build", str(yaml), "--in-process"]) not in (None, 0)
    said = "".join([*capfd.readouterr(), *logged])
    assert "recognizer of EMAIL_ADDRESS failed on document" in said
    assert not [word for word in TELLTALES if word in said]
