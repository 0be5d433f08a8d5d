"""The PII stage leaks no text into logs, output or errors, and does not access the network."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.errors import UserError
from pipelines.stages.pii.detect import _find_names
from pipelines.stages.pii.name_finders import NameFinder
from pipelines.stages.pii.pii import Pii


def table(*texts):
    ids = pa.array([row.to_bytes(16) for row in range(len(texts))], pa.binary(16))
    return pa.table({"id": ids, "text": pa.array(texts, pa.large_string())})


CANARIES = ["canary.bird@example.com", "219-09-9998", "4111 1111 1111 1111", "DE89370400440532013000", "(650) 253-0000"]


def test_nothing_logs_or_prints_what_was_found(logged, capfd):
    text = " and ".join(CANARIES)
    Pii().annotate(table(text, text.replace("9", "8"), text.replace("example.com", "nowhere.invalid")))
    # Presidio's IBAN recognizer quotes the text when a validation fails.
    logging.getLogger("presidio-analyzer").error("Failed to validate text %s", CANARIES[3])
    seen = "".join([*logged, *capfd.readouterr()])
    assert not [canary for canary in CANARIES if canary in seen]


def test_an_error_names_only_the_document_and_the_entity(monkeypatch):
    stage = Pii()

    def fail(text, entities):
        raise ValueError(f"invalid literal: {text}") if "canary" in text else RuntimeError("another document")

    monkeypatch.setattr(stage.detector.recognizers["EMAIL_ADDRESS"], "analyze", fail)
    with pytest.raises(UserError) as error:
        stage.annotate(table("nothing", f"write to {CANARIES[0]}"))
    assert "EMAIL_ADDRESS failed on document 00000000000000000000000000000001 with ValueError" in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__
    assert not [canary for canary in CANARIES if canary in str(error.value)]


def test_a_language_model_that_fails_is_named_with_the_document():
    class Failing(NameFinder):
        def find(self, texts):
            if any("canary" in text for text in texts):
                raise ValueError(f"invalid: {texts}")
            yield from ([] for _ in texts)

    docs = table("nothing", f"write to {CANARIES[0]}")
    with pytest.raises(UserError) as error:
        list(_find_names(Failing("models/ner", ("PERSON", "LOCATION")), docs["text"], docs["id"]))
    assert str(error.value) == (
        "pii: the NER model models/ner failed on document 00000000000000000000000000000001 with ValueError; "
        "remove PERSON, LOCATION from `entities`, or exclude the document"
    )


FRESH = """
import socket, sys
def refuse(*arguments, **named):
    raise AssertionError("the network was touched")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
import pyarrow as pa
from pipelines.stages.pii.pii import Pii
assert not {"presidio_analyzer", "spacy", "numba", "phonenumbers", "torch"} & set(sys.modules), "imported too early"
stage = Pii()
stage.setup()
ids = pa.array([bytes(16)], pa.binary(16))
docs = pa.table({"id": ids, "text": pa.array(["joe@example.co.uk, joe@nowhere.invalid"], pa.large_string())})
print(stage.annotate(docs)["pii_email_address"].to_pylist(), {"torch", "transformers"} & set(sys.modules))
"""


@pytest.mark.long
def test_a_fresh_process_needs_no_network_and_warns_of_nothing(tmp_path):
    root = Path(__file__).parents[4]
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "HOME": str(tmp_path),
        "TLDEXTRACT_CACHE": str(tmp_path / "tld"),
    }
    command = [sys.executable, "-W", "error", "-c", FRESH]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=root, check=False)
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("[1] set()", "", 0)
    assert not (tmp_path / "tld").exists()
