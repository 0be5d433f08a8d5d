"""The commands of docs/vectors.md run in the order of the page."""

import json
import re
import shlex
from pathlib import Path
from random import Random

import pytest

from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import CorpusConfig
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.reading.sources.source import Source

PAGE = Path(__file__).parents[3] / "docs" / "vectors.md"
TOPICS = [["gold", "iron", *(f"metal{i}" for i in range(40))], ["horse", *(f"animal{i}" for i in range(40))]]


@pytest.mark.long
def test_the_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    random, sources = Random(0), []
    for year in ("year_2019", "year_2020"):
        texts = [" ".join(random.choices(TOPICS[k % 2], k=30)) for k in range(200)]
        (tmp_path / f"{year}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        sources.append(Source(year, str(tmp_path / f"{year}.jsonl"), "jsonl"))
    config = CorpusConfig("news", "corpora/news", tuple(sources), ())
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) == 6
    for command in commands:
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "pipelines"]
        assert main(words[3:]) == 0, command
        assert capsys.readouterr().out
    assert sorted(path.name for path in Path("vectors/both").iterdir()) == ["source.txt", "target.txt"]
