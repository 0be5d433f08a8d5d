"""Every configuration file in the repository is valid."""

from pathlib import Path

import pytest
import yaml

from pipelines.__main__ import main
from pipelines.contracts.config import load_yaml
from pipelines.corpus import load_corpus_config, plain_config

ROOT = Path(__file__).parents[1]
CORPORA = sorted((ROOT / "corpora_configs").rglob("*.yaml"))


@pytest.mark.parametrize("path", CORPORA, ids=lambda path: path.name)
def test_every_corpus_file_plans(path, capsys):
    assert main(["plan", str(path), "--check"]) == 0
    assert "valid" in capsys.readouterr().out


@pytest.mark.parametrize("path", CORPORA, ids=lambda path: path.name)
def test_a_resolved_corpus_file_is_a_valid_input(path, tmp_path):
    config = load_corpus_config(path)
    again = tmp_path / path.name
    again.write_text(yaml.safe_dump(plain_config(config)))
    assert load_corpus_config(again) == config


def test_there_is_a_demo():
    assert [path.name for path in CORPORA if path.name == "demo.yaml"] == ["demo.yaml"]


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_the_ray_cluster_is_valid():
    """Ray's own schema, and what it does not notice: a node type that may grow beyond the whole cluster."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = load_yaml(ROOT / "ray_cluster.yaml")
    validate_config(prepare_config(config))
    for name, node in config["available_node_types"].items():
        assert node["max_workers"] <= config["max_workers"], name
    assert config["available_node_types"][config["head_node_type"]]["resources"]["CPU"] == 0
