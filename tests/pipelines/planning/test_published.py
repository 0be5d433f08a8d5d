"""The plan is a function of its arguments; only `add_published_files` looks into the output directory."""

from pathlib import Path

import pytest

from gristmill.storage.location import FileRecord
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.planning.published import _differences, add_published_files


@pytest.fixture
def unrepeatable(corpus_file):
    """Return the configuration and inventories of `corpus_file`, with a tokenizer that comes out differently
    each time it is trained.
    """
    corpus_file.write_text(corpus_file.read_text().replace("vocab_size: 600", "vocab_size: 400, kind: wordpiece"))
    config = load_corpus_config(corpus_file)
    return config, take_inventory(config.sources, config.place)


def test_fingerprints_depend_on_published_files_that_are_an_argument(unrepeatable):
    config, inventories = unrepeatable
    plan = make_plan(config, inventories)
    tokenizer = plan.step("learn_tokenizer").directory
    plans = [
        make_plan(config, inventories, None, {tokenizer: (FileRecord("a", 1, hexdigits),)})
        for hexdigits in ("00", "11")
    ]
    shards = [plan.step("shards") for plan in (plan, *plans)]
    assert len({step.fingerprint for step in shards}) == 3
    assert [step.identity["inputs"]["learn_tokenizer files"] for step in shards] == [None, ["a 00"], ["a 11"]]
    for label in (step.label for step in plan.steps if step.label not in ("shards", "funnel")):
        assert len({each.step(label).fingerprint for each in (plan, *plans)}) == 1


@pytest.mark.long
def test_a_plan_of_a_built_corpus_is_that_of_its_manifest_once_it_knows_the_files(unrepeatable, tmp_path: Path):
    config, inventories = unrepeatable
    built = {step["step"]: step["fingerprint"] for step in build(
        make_plan(config, inventories), LocalCluster(), lambda line: None).steps}  # fmt: skip
    unaware = make_plan(config, inventories)
    assert unaware.step("shards").fingerprint != built["shards"]
    aware = add_published_files(unaware)
    assert {step.label: step.fingerprint for step in aware.steps} == built
    assert add_published_files(aware) is aware


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ([{"rules": "a"}], [{"rules": "a"}, {"signal": "n", "at_most": None, "at_least": 5}],
         ["rules[1]: added {'signal': 'n', 'at_least': 5}"]),
        ([1, 2, 3], [1, 3], ["rules[1]: removed 2"]),
        ([1, 2, 3, 4], [1, 9, 3, 4], ["rules[1]: 2 -> 9"]),
        ([{"at_least": 1}, "same"], [{"at_least": 2}, "same"], ["rules[0].at_least: 1 -> 2"]),
        ([1, 1], [1, 1, 1], ["rules[2]: added 1"]),
        ([1, 2], [3], ["rules[0]: 1 -> 3", "rules[1]: removed 2"]),
        ([], [7], ["rules[0]: added 7"]),
    ],
)  # fmt: skip
def test_reasons_begin_with_the_first_entry_of_a_list_that_differs(old, new, lines):
    assert _differences("", {"rules": old}, {"rules": new}) == lines
