"""The pages of a corpus in headless Chromium: nothing is wider than the window, and no label of a chart is cut off."""

import html
import json
import shutil
import subprocess

import pytest

import pipelines
from pipelines.__main__ import main

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
CORPUS = """
name: mine
output: out
sources:
  - {name: a_source_with_a_long_name, root: web, format: jsonl, columns: {score: float, created: date}, licence: CC BY-SA 4.0}
  - {name: code, root: code, format: code}
steps:
  - quality_signals: {}
  - text_hash: {}
  - filter:
      - {signal: word_count, at_least: LEAST, null: drop}
      - {signal: score, at_least: 3, null: keep, when: {source: [a_source_with_a_long_name]}}
  - dedup_exact: {}
  - learn_tokenizer: {kind: bytes}
  - shards: {tokenizer: learn_tokenizer, validation_share: 0.1}
"""
MEASURE = """
const measure = frame => {
  const page = frame.contentDocument, root = page.documentElement;
  const cut = [...page.querySelectorAll("svg text")].filter(text => {
    const box = text.getBBox(), view = text.ownerSVGElement.viewBox.baseVal;
    return view.width && (box.x < view.x - 1 || box.x + box.width > view.x + view.width + 1);
  });
  return {page: frame.title, window: root.clientWidth, content: root.scrollWidth, texts: page.body.innerText.length,
          charts: page.querySelectorAll("svg").length, cut: cut.map(text => text.textContent)};
};
onload = () => { document.body.textContent = JSON.stringify([...document.querySelectorAll("iframe")].map(measure)) };
"""
WIDTHS = (700, 1600)  # CSS pixels


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    root = tmp_path_factory.mktemp("pages")
    (root / "web").mkdir()
    (root / "code").mkdir()
    text = "The mill by the river grinds corn for all of the village, and nobody knows since when. "
    rows = [
        {"text": f"{number} {text * (number % 40)}", "score": number % 11, "created": f"20{number % 20 + 10}-01-02"}
        for number in range(1500)
    ]
    rows += [{"text": f"{text} {text}", "url": "https://example.org/" + "very-long-path/" * 30}] * 3
    (root / "web/a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (root / "code/a.py").write_text("x = '" + "0123456789" * 100 + "'\n# a comment\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for least in (9, 40):
            (root / "mine.yaml").write_text(CORPUS.replace("LEAST", str(least)))
            pipelines.build("mine.yaml", in_process=True)
            if least == 9:
                shutil.copy(root / "out/manifest.json", root / "out/yesterday.json")
        pipelines.build("mine.yaml", in_process=True, sample=0.5)
        assert main(["diff", "out/yesterday.json", "out", "--ngrams", "2", "--html", "diff.html"]) == 0
        assert main(["datasheet", "out", "--output", "datasheet.html"]) == 0
    return {
        "report": root / "out/report.html", "rehearsal": root / "out-sample-0.5/report.html",
        "diff": root / "diff.html", "datasheet": root / "datasheet.html",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_everything_fits_the_window(pages, tmp_path):
    frames = [
        f'<iframe title="{name}" src="{page.resolve().as_uri()}" width="{width}" height="900" style="border: 0"></iframe>'
        for name, page in pages.items()
        for width in WIDTHS
    ]
    harness = tmp_path / "harness.html"
    harness.write_text(f"<!doctype html><meta charset=utf-8>{''.join(frames)}<script>{MEASURE}</script>")
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--allow-file-access-from-files", "--dump-dom", harness.as_uri()]
    shown = subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout
    measured = json.loads(html.unescape(shown.partition("<body>")[2].partition("</body>")[0]))
    assert [each["page"] for each in measured] == [name for name in pages for _ in WIDTHS]
    for each in measured:
        assert each["texts"] > 500, each
        assert each["content"] <= each["window"], each
        assert each["cut"] == [], each
    assert {each["page"] for each in measured if each["charts"]} >= {"report", "rehearsal"}
