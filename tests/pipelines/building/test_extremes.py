"""Extreme documents pass a whole build in bounded memory, and all counts are correct."""

import gzip
import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from tests.pipelines.kernels.test_segment import reference_lines, reference_words

ROOT = Path(__file__).parents[3]
EMPTY_LINES = 10_000_000
WORD = 30_000_000  # characters, of two bytes each
LONG_RECORD = 1 << 30  # bytes
SPLIT_RECORD = 64 << 20

CONFIG = """\
name: extremes
output: {root}/out
sources:
  - {{name: text, root: {root}/text, format: text}}
  - {{name: records, root: {root}/records, format: jsonl, part_bytes: 1000}}
  - {{name: split, root: {root}/split, format: jsonl, max_document_bytes: 8000000, oversized: split, part_bytes: 20000000}}
steps:
  - quality_signals: {{}}
  - language: {{}}
  - text_hash: {{}}
  - minhash_signatures: {{}}
  - filter: [{{rules: gopher_quality@massivetext}}]
"""
# Prints one line of JSON: the peak of the resident memory in MB, what was set aside, and the columns of every document.
CHILD = """
import json, sys
from pathlib import Path
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan

config = load_corpus_config(Path(sys.argv[1]))
build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
corpus, rows = open_corpus(config.place), {}
names = ("n_bytes", "n_chars", "n_lines", "n_paragraphs", "n_sentences", "word_count", "mean_word_length", "drop")
for part in corpus.parts():
    rows.update(zip(corpus.printed_ids(part), part.table(names).to_pylist(), strict=True))
aside = {source: facts["quarantined"] for source, facts in corpus.manifest.sources.items()}
print(json.dumps({"peak": int(peak.split()[1]) / 1024, "aside": aside, "rows": rows}))
"""


def every_character() -> str:
    """Return every code point of all 17 planes except surrogates and control characters, in lines of 64, as a reader would
    store them.
    """
    codes = [code for code in range(0x20, 0x110000) if not (0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000)]
    lines = ("".join(map(chr, codes[at : at + 64])) for at in range(0, len(codes), 64))
    text = unicodedata.normalize("NFC", "\n".join(lines))
    return text.replace("\u2028", "\n").replace("\u2029", "\n")


def write_long_record(folder: Path, size: int) -> None:
    """Write three JSON records; the second is about `size` bytes long, in lines of 1 MiB with 209,715 words."""
    line = b"word " * 209_714 + b"last \\n"
    folder.mkdir()
    with gzip.open(folder / "long.jsonl.gz", "wb", compresslevel=1) as sink:
        sink.write(b'{"text": "before"}\n{"text": "')
        for _ in range(size >> 20):
            sink.write(line)
        sink.write(b'"}\n{"text": "after"}\n')


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_extreme_documents_go_through_a_build_with_bounded_memory(tmp_path):
    planes = every_character()
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "lines").write_bytes(b"The first line.\n" + b"\n" * EMPTY_LINES + b"And the last.")
    (tmp_path / "text" / "word").write_bytes("é".encode() * WORD)
    (tmp_path / "text" / "planes").write_text(planes, encoding="utf-8")
    (tmp_path / "text" / "broken").write_bytes(b"good until \xff\xfe here")
    write_long_record(tmp_path / "records", LONG_RECORD)
    write_long_record(tmp_path / "split", SPLIT_RECORD)
    (tmp_path / "extremes.yaml").write_text(CONFIG.format(root=tmp_path))
    command = [sys.executable, "-c", CHILD, str(tmp_path / "extremes.yaml")]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-3000:]
    found = json.loads(child.stdout)

    rows = found["rows"]
    split = [rows.pop(name) for name in sorted(rows) if name.startswith("split/")]
    assert all(row["n_bytes"] <= 8_000_000 for row in split)
    assert sum(row["word_count"] for row in split) == 2 + 209_715 * (SPLIT_RECORD >> 20)
    assert sorted(rows) == [
        "records/long.jsonl.gz#0", "records/long.jsonl.gz#2", "text/lines#0", "text/planes#0", "text/word#0"
    ]  # fmt: skip
    assert found["aside"] == {"text": {"undecodable": 1}, "records": {"oversized": 1}, "split": {}}
    size = EMPTY_LINES + 16 + 13
    assert rows["text/lines#0"] == {
        "n_bytes": size, "n_chars": size, "n_lines": 2, "n_paragraphs": 2, "n_sentences": 2, "word_count": 6,
        "mean_word_length": pytest.approx(22 / 6, rel=1e-6), "drop": "gopher_quality.word_count",
    }  # fmt: skip
    assert rows["text/word#0"] == {
        "n_bytes": 2 * WORD, "n_chars": WORD, "n_lines": 1, "n_paragraphs": 1, "n_sentences": 1, "word_count": 1,
        "mean_word_length": WORD, "drop": "gopher_quality.word_count",
    }  # fmt: skip
    words = reference_words(planes)
    seen = rows["text/planes#0"]
    assert (seen["n_bytes"], seen["n_chars"]) == (len(planes.encode()), len(planes))
    assert (seen["n_lines"], seen["word_count"]) == (len(reference_lines(planes)), len(words))
    assert seen["mean_word_length"] == pytest.approx(sum(map(len, words)) / len(words), rel=1e-6)
    assert found["peak"] < 1000, f"{found['peak']:.0f} MB resident"
