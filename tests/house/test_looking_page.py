"""The commands of docs/looking.md run in order, on small corpora with the names that the page uses."""

import json
import re
import shlex
from pathlib import Path

import pytest

import pipelines
from pipelines.__main__ import main
from tests.conftest import paragraph

PAGE = (Path(__file__).parents[2] / "docs" / "looking.md").read_text()
COMMANDS = [
    shlex.split(line, comments=True)[3:]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines()
]
MORE = {"build": ["--in-process"], "thresholds": ["--least", "10"]}  # the corpora are small
CORPUS = """
name: {name}
output: data/corpora/{name}
sources:
  - {{name: plays, root: plays, format: jsonl}}
  - {{name: docs, root: docs, format: text}}
steps:
  - quality_signals: {{}}
  - peer_signals: {{}}
  - language: {{}}
  - filter: [{{signal: word_count, at_least: {least}}}]
  - text_hash: {{}}
  - dedup_exact: {{}}
  - learn_tokenizer: {{kind: bytes}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0.2}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("looking")
    (root / "plays").mkdir()
    (root / "docs").mkdir()
    rows = [{"text": f"wherefore art thou, {paragraph(n, 20)}", "url": f"https://example.org/{n}"} for n in range(40)]
    (root / "plays" / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for number in range(4):
        (root / "docs" / f"{number}.txt").write_text(f"The licence of {paragraph(100 + number, 30 * number + 1)}")
    (root / "notes.yaml").write_text(next(each for each in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for name, leasts in (("demo", (1,)), ("multilingual", (1,)), ("mine", (40, 30, 20))):
            for least in leasts:
                (root / f"{name}.yaml").write_text(CORPUS.format(name=name, least=least))
                pipelines.build(f"{name}.yaml", in_process=True)
        (root / "mine.yaml").write_text(CORPUS.format(name="mine", least=10))
    return root


def named(command, place):
    earlier = sorted(place.glob("data/corpora/mine/earlier-*.json"))[-2:]
    first = earlier[0].stem.rpartition("-")[2]
    found = {"1a2b3c4d": first[:8]} | {
        f"data/corpora/mine/earlier-{number}.json": str(path.relative_to(place))
        for number, path in zip(("0001-1a2b3c4d5e6f", "0002-0f1e2d3c4b5a"), earlier, strict=True)
    }
    return [found.get(word, word) for word in command]


@pytest.mark.long
def test_every_command_runs(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    ran = set()
    for command in COMMANDS:
        words = [*named(command, place), *MORE.get(command[0], ())]
        assert main(words) == 0, f"{' '.join(words)}: {capsys.readouterr().err}"
        ran.add(command[0])
    assert ran == {"search", "index", "build", "diff", "inspect", "thresholds", "datasheet", "export"}
    for path in ("diff.html", "datasheet.html", "data/exports/mds/train/index.json", "data/exports/nanogpt/train.bin"):
        assert (place / path).stat().st_size > 100


@pytest.mark.filterwarnings("ignore")  # those of the library
def test_litdata_opens_its_export(place, monkeypatch):
    pytest.importorskip("litdata", reason="pip install litdata==0.2.76")
    monkeypatch.chdir(place)
    monkeypatch.setenv("LITDATA_CACHE_DIR", str(place / "cache"))
    assert main(["export", "data/corpora/demo", "data/exports/blocks", "--format", "litdata"]) == 0
    example = next(each for each in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "litdata" in each)
    values = {}
    exec(example.replace("exports/litdata", "exports/blocks").replace("2048 + 1", "64 + 1"), values)
    assert len(values["blocks"]) > 5
    assert values["blocks"][0].shape == (65,)
