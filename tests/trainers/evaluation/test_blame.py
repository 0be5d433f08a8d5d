"""Blame on a corpus built from text: a planted garbage document ranks first and is reported with its full
history.
"""

import json
import random
import shutil
from dataclasses import replace

import pytest
import torch

from gristmill.errors import ConflictError, UserError
from gristmill.storage.store import read_json, write_json
from pipelines.building.build import plan_and_build
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from tests.conftest import paragraph
from trainers.__main__ import main
from trainers.config.job import BatchSize, TrainingBudget
from trainers.data.packed_corpus import open_corpus, training_data
from trainers.data.sequence_documents import ids_of
from trainers.engine.forward import Forward, tensors
from trainers.evaluation.blame import blame, show
from trainers.models import build_model
from trainers.recipes import llama_tiny
from trainers.runs import checkpoint
from trainers.runs.resolve import resolve
from trainers.runs.run import fingerprints, open_run

GARBAGE = "web/1.jsonl#4"
SEQUENCES = 4


def garbage() -> str:
    letters = random.Random(0)
    return " ".join("".join(letters.choices("qxzjkvQXZJKV#%&", k=7)) for _ in range(60))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    root = tmp_path_factory.mktemp("blamed")
    (root / "web").mkdir()
    texts = [[paragraph(20 * number + i) for i in range(20)] for number in range(2)]
    texts[1][4] = garbage()
    for number, some in enumerate(texts):
        lines = [
            json.dumps({"text": text, "url": f"https://{number}.example/{i}?to=jane@example.org\x1b[2J"})
            for i, text in enumerate(some)
        ]
        (root / "web" / f"{number}.jsonl").write_text("\n".join(lines))
    (root / "corpus.yaml").write_text(f"""\
name: blamed
output: {root}/out
sources: [{{name: web, root: {root}/web, format: jsonl}}]
steps:
  - text_hash: {{}}
  - dedup_exact: {{}}
  - pii: {{entities: [EMAIL_ADDRESS], fields: [url]}}
  - learn_tokenizer: {{vocab_size: 500, sample_bytes: 20000}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0}}
""")
    config = load_corpus_config(root / "corpus.yaml", ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.building.publish.write_report", lambda *arguments: False)
        plan_and_build(config, take_inventory(config.sources, root / "out"), LocalCluster(), lambda _: None)
    return root / "out"


@pytest.fixture(scope="module")
def found(directory, tmp_path_factory):
    """(run, data, step): the run's checkpoint at step 3 holds a model trained on 80 rows without the garbage
    document, which the run reads at `step`.
    """
    corpus = open_corpus((str(directory),), None)
    recipe = llama_tiny()
    small = replace(recipe, batch=BatchSize(sequences=SEQUENCES), budget=TrainingBudget(steps=40))
    config = resolve(replace(small, data=replace(recipe.data, corpora=(str(directory),))), corpus)
    run = tmp_path_factory.mktemp("runs") / "run"
    open_run(run, config, corpus)
    data = training_data(corpus, config)
    from pipelines.contracts.lineage import open_corpus as published

    planted = published(directory).find(GARBAGE).id
    samples = data.order.take(0, 40 * SEQUENCES)
    holds = [planted in ids_of(data.sources[0], int(number), 128) for number in samples.sequence]
    step = next(i for i in range(4, 40) if any(holds[i * SEQUENCES : (i + 1) * SEQUENCES])) + 1
    model = build_model(config.model, corpus.tokenizer.specials, config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    clean = [i for i, held in enumerate(holds) if not held]
    for start in range(0, 80, 8):
        batch = data.rows(samples.select(clean[start : start + 8]))
        nats = Forward(model, config.model.architecture)(**tensors(batch, "cpu"))["loss"]
        (nats.sum() / (batch.targets >= 0).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    state = ((name, {"weight": tensor.detach().clone()}) for name, tensor in model.named_parameters())
    checkpoint.save(run, 3, 0, fingerprints(config, corpus), state, keep=1)
    return run, data, step


def test_the_garbage_document_is_first_with_url_and_history(found, capsys):
    run, _, step = found
    result = blame(run, step, pytest.fail)
    assert result.weights == 3
    worst = result.documents[0]
    history = result.history(worst)
    assert (history.printed, worst.source) == (GARBAGE, "web")
    assert worst.excess > 3 * max(document.excess for document in result.documents[1:])
    assert worst.losses["loss"] > result.losses["loss"] + 1
    assert history.url == "https://1.example/4?to=<EMAIL_ADDRESS>\x1b[2J"
    assert [line.partition(":")[0] for line in history.steps] == ["read.web", "text_hash", "dedup_exact", "pii"]
    assert "keeps" in history.steps[2]
    assert main(["blame", str(run), "--step", str(step), "--documents", "2"]) == 0
    shown = capsys.readouterr().out
    assert f"1. {GARBAGE}  source web  loss " in shown
    assert "\x1b" not in shown
    assert garbage()[:10] not in shown


def test_where_no_checkpoint_before_the_step_is_kept_the_first_one_after_it_finds_the_garbage(found, tmp_path, capsys):
    """The garbage does not stand out under the initial weights, so without a later checkpoint blame would
    find nothing in the first steps of a long run.
    """
    run, _, step = found
    copy = shutil.copytree(run, tmp_path / "run")
    state = checkpoint.read_state(checkpoint.newest(copy, pytest.fail))
    marks = read_json(copy / "run.json")["fingerprints"]
    shutil.rmtree(copy / "checkpoints")
    initial = blame(copy, step, pytest.fail)
    assert (initial.weights, initial.documents[0].excess < 10) == (0, True)
    for later in (step + 2, step):
        checkpoint.save(copy, later, 0, marks, iter(state.items()), keep=2)
        result = blame(copy, step, pytest.fail)
        assert result.weights == later
        assert result.history(result.documents[0]).printed == GARBAGE
        shutil.rmtree(copy / "checkpoints")
    checkpoint.save(copy, step, 0, marks, iter(state.items()), keep=2)
    assert main(["blame", str(copy), "--step", str(step), "--documents", "1"]) == 0
    assert f"with the weights of step {step}, because no earlier checkpoint is kept" in capsys.readouterr().out


def test_the_losses_are_those_of_the_step(found):
    """The documents' tokens add up to those of the step's sequences, and their excess losses add up to zero."""
    run, data, step = found
    result = blame(run, step, pytest.fail)
    samples = data.order.take((step - 1) * SEQUENCES, SEQUENCES)
    assert sum(document.tokens for document in result.documents) == samples.tokens.sum()
    assert sum(document.excess for document in result.documents) == pytest.approx(0, abs=1e-3)


def test_a_run_that_began_with_other_weights_needs_a_checkpoint(found, tmp_path):
    run, _, step = found
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    record = read_json(copy / "run.json")
    write_json(
        copy / "run.json", {name: record[name] for name in record if name != "checksum"} | {"parent": {"path": "/base"}}
    )
    with pytest.raises(UserError, match="began with the weights of /base and has no checkpoint"):
        blame(copy, step, pytest.fail)


def test_a_document_without_targets_is_printed_without_a_loss(found):
    run, _, step = found
    result, lines = blame(run, step, pytest.fail), []
    show(replace(result, documents=(replace(result.documents[0], tokens=0, losses={}),)), 1, lines.append)
    assert f"1. {GARBAGE}  source web  no targets over 0 tokens" in lines[1]


def test_the_excess_over_several_losses_has_no_unit(found):
    run, _, step = found
    result, lines = blame(run, step, pytest.fail), []
    for losses in (result.losses, {**result.losses, "sentence_loss": 0.7}):
        show(replace(result, losses=losses), 1, lines.append)
    assert [" nats" in line for line in lines if line.startswith("1. ")] == [True, False]


def test_a_document_that_is_excluded_is_marked(found, tmp_path):
    from trainers.runs.exclusion import exclude

    run, _, step = found
    copy = shutil.copytree(run, tmp_path / "run")
    (tmp_path / "garbage.txt").write_text(f"{GARBAGE}\n")
    exclude(copy, tmp_path / "garbage.txt", blame(run, step, pytest.fail).corpus)
    assert [document.excluded for document in blame(copy, step, pytest.fail).documents][:2] == [True, False]


def test_steps_and_corpora_that_are_not_the_runs_are_refused(found, tmp_path):
    run, _, _ = found
    with pytest.raises(UserError, match="allowed 1 to 40"):
        blame(run, 41, pytest.fail)
    copy = shutil.copytree(run, tmp_path / "run")
    record = read_json(copy / "run.json")
    write_json(copy / "run.json", {**record, "fingerprints": {**record["fingerprints"], "corpus": "0" * 32}})
    with pytest.raises(ConflictError, match="with its documents in another order"):
        blame(copy, 5, pytest.fail)
