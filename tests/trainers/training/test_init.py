"""Runs initialised with the weights of another run, an export or a Hugging Face directory."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from gristmill.errors import ConfigError, UserError
from gristmill.events import read_events
from trainers.__main__ import main
from trainers.config.architecture import fill
from trainers.config.job import BatchSize, Checkpoints, Init, Schedule, TrainingBudget
from trainers.config.pretraining import Data, Validation
from trainers.data.packed_corpus import open_corpus
from trainers.models import build_model, stock_class
from trainers.recipes import RECIPES, llama_tiny
from trainers.runs import checkpoint
from trainers.runs.ledger import read_ledger
from trainers.runs.parent import describe
from trainers.runs.resolve import resolve
from trainers.runs.run import open_run, read_run
from trainers.training.begin import read_state

pytestmark = [
    pytest.mark.deepspeed,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("alone"),
]
CONSTANT = Schedule(kind="constant")
STEPS = 4


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def small(corpus, stage=0, recipe=None, steps=STEPS, **changes):
    recipe = recipe or llama_tiny()
    settings = {
        "batch": BatchSize(sequences=2),
        "budget": TrainingBudget(steps=steps),
        "schedule": CONSTANT,
        "validation": Validation(every=100, tokens=128),
        "checkpoints": Checkpoints(every=1, keep=9),
        "log_every": 1,
        "execution": replace(recipe.execution, zero_stage=stage, micro_batch=2),
        "data": replace(recipe.data, corpora=(str(corpus.directory),), sequence_length=32),
    }
    return resolve(replace(recipe, **{**settings, **changes}), corpus)


def train(corpus, run, stage=0, **changes):
    from trainers.training.loop import train

    config = small(corpus, stage, **changes)
    open_run(run, config, corpus)
    train(config, corpus, run, None)
    return run


def losses(run):
    return {entry["step"]: entry["loss"] for entry in read_events(run / "log.jsonl", "step")}


@pytest.fixture(scope="module")
def parent(corpus, tmp_path_factory, process_group):
    import os

    before = dict(os.environ)
    os.environ.update(process_group)
    run = train(corpus, tmp_path_factory.mktemp("parent") / "run")
    process_group.update({name: value for name, value in os.environ.items() if name not in before})
    os.environ.clear()
    os.environ.update(before)
    return run


@pytest.mark.parametrize("stage", [0, 3])
def test_training_longer_equals_a_run_that_was_longer_from_the_start(corpus, parent, tmp_path, stage):
    init = Init(str(parent), step=2, optimizer="keep", data="continue")
    branch = train(corpus, tmp_path / "branch", stage, steps=6, init=init)
    whole = train(corpus, tmp_path / "whole", steps=6)
    assert losses(branch) == pytest.approx(
        {step: losses(whole)[step] for step in (3, 4, 5, 6)}, abs=1e-6 if stage else 0
    )
    assert losses(whole)[3] == losses(parent)[3]
    found = checkpoint.newest(parent, pytest.fail, 2)
    recorded = read_run(branch)["parent"]
    assert (recorded["first_step"], recorded["updates"], recorded["checkpoint"]) == (2, 2, found.checksum)
    assert recorded["fingerprints"] == found.fingerprints
    assert read_ledger(branch)["parent"] == recorded
    assert read_ledger(branch)["sources"] == read_ledger(whole)["sources"]
    assert read_events(branch / "log.jsonl", "init")[0]["parent"] == recorded
    # Resuming after a kill is that of any run.
    expected = losses(branch)
    for step in (4, 5, 6):
        shutil.rmtree(branch / "checkpoints" / f"step-{step:08d}")
    for name in ("log.jsonl", "finished.json"):
        (branch / name).unlink()
    assert main(["pretrain", str(branch / "resolved.yaml"), f"run={branch}"]) == 0
    assert losses(branch) == pytest.approx({step: expected[step] for step in (4, 5, 6)}, abs=1e-6)


def test_a_branch_of_a_branch_counts_the_updates_of_both(corpus, parent, tmp_path):
    keep = {"optimizer": "keep", "data": "continue"}
    one = train(corpus, tmp_path / "one", steps=5, init=Init(str(parent), **keep))
    two = train(corpus, tmp_path / "two", steps=6, init=Init(str(one), step=5, **keep))
    whole = train(corpus, tmp_path / "whole", steps=6)
    assert read_run(two)["parent"]["updates"] == 5
    assert losses(two) == {6: losses(whole)[6]}
    restarted = train(corpus, tmp_path / "three", steps=1, init=Init(str(two), optimizer="keep"))
    assert read_run(restarted)["parent"]["updates"] == 6
    assert list(losses(restarted)) == [1]


def test_a_decay_branch_begins_where_the_stable_rate_was(corpus, parent, tmp_path):
    schedule = Schedule(kind="wsd", decay_fraction=0.5, final_fraction=0.0)
    init = Init(str(parent), step=3, optimizer="keep", data="continue")
    branch = train(corpus, tmp_path / "branch", steps=6, schedule=schedule, init=init)
    rates = [entry["learning_rate"] for entry in read_events(branch / "log.jsonl", "step")]
    assert losses(branch)[4] == losses(parent)[4]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 0.0


def test_longer_contexts_with_another_base_start_from_the_weights_only(corpus, parent, tmp_path):
    model = replace(llama_tiny().model, positions=256, rope_base=500000.0)
    data = Data(corpora=(str(corpus.directory),), sequence_length=64)
    branch = train(corpus, tmp_path / "branch", steps=2, model=model, data=data, init=Init(str(parent), step=4))
    assert list(losses(branch)) == [1, 2]
    assert read_run(branch)["parent"] | {"updates": 0, "first_step": 0, "tokens": 0} == read_run(branch)["parent"]
    from_seed = train(corpus, tmp_path / "seed", steps=1, model=model, data=data)
    assert losses(branch)[1] < losses(from_seed)[1] - 0.05  # the same rows
    with pytest.raises(ConfigError, match=r"init.data: got continue, but the parent read other samples: corpus, data"):
        train(corpus, tmp_path / "no", steps=6, model=model, data=data, init=Init(str(parent), data="continue"))
    assert not (tmp_path / "no" / "run.json").exists()


def test_learned_positions_do_not_grow(corpus, tmp_path):
    one = train(corpus, tmp_path / "one", recipe=RECIPES["tiny_gpt2"](), steps=1)
    longer = RECIPES["tiny_gpt2"]()
    longer = replace(longer, model=replace(longer.model, positions=256))
    with pytest.raises(
        ConfigError, match=r"tensor transformer\.wpe\.weight: .* has \[128, 64\], this run's model has \[256"
    ):
        train(corpus, tmp_path / "two", recipe=longer, init=Init(str(one)))


def test_an_export_is_a_parent_and_what_does_not_fit_is_one_error(corpus, parent, foreign_directory, tmp_path):
    export = train(corpus, tmp_path / "branch", steps=1, init=Init(str(parent / "export")))
    assert read_run(export)["parent"]["step"] == STEPS
    model = llama_tiny().model
    for init, changes, message in [
        (Init(str(parent / "export"), optimizer="keep"), {}, "init.optimizer: got keep, only a run has that"),
        (Init(str(parent / "export"), step=2), {}, "init.step: got 2, only a run has that"),
        (
            Init(str(parent), step=9),
            {},
            "init.step: .* has no checkpoint of step 9; the nearest before it is that of step 4",
        ),
        (Init(str(tmp_path)), {}, "has no run.json, gristmill.json or config.json"),
        (Init(str(parent)), {"model": replace(model, heads=2)}, "model.heads: got 2, the model of init.path has 4"),
        (Init(str(parent)), {"model": replace(model, width=32)}, "model.width: got 32, the model of init.path has 64"),
        (Init(str(parent), data="continue"), {"seed": 1}, "the parent read other samples"),
        (Init(str(parent), data="continue"), {"steps": STEPS}, "budget.steps: got 4, .* allowed 5 or more"),
    ]:
        with pytest.raises(UserError, match=message):
            train(corpus, tmp_path / "wrong", init=init, **{"steps": 9, **changes})
        shutil.rmtree(tmp_path / "wrong", ignore_errors=True)


@pytest.mark.parametrize("name", ["bart", "bert", "gpt2", "llama", "modernbert", "roberta", "t5"])
def test_a_hugging_face_directory_gives_the_model_that_it_holds(name, corpus, tmp_path):
    """The directory holds a stock model saved by `transformers`. Our tensors and logits equal those of the
    stock model.
    """
    import transformers

    recipe = RECIPES[f"tiny_{name}" if name != "llama" else "llama_tiny"]()
    recipe = replace(recipe, model=replace(recipe.model, sentence_head=False, dropout=0.0))
    sizes = fill(recipe.model, corpus.tokenizer.vocab_size)
    specials = corpus.tokenizer.specials
    torch.manual_seed(1)
    stock = stock_class(sizes)
    configuration = build_model(sizes, specials, 0).config
    original = stock.from_config(configuration).eval()
    with torch.no_grad():
        for parameter in original.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    original.save_pretrained(tmp_path)
    shutil.copy(corpus.directory / "tokenizer.json", tmp_path)
    config = replace(recipe, model=sizes, init=Init(str(tmp_path)))
    record = describe(config, corpus)
    assert record["kind"] == "hugging_face"
    ours = build_model(sizes, specials, 5).eval()
    shapes = {key: tuple(parameter.shape) for key, parameter in ours.named_parameters()}
    state = read_state(config, corpus, record, shapes)
    assert set(state) == set(shapes)
    with torch.no_grad():
        for key, parameter in ours.named_parameters():
            parameter.copy_(state[key]["weight"])
    ids = torch.randint(128, 390, (2, 20))
    more = {"decoder_input_ids": ids} if name in ("bart", "t5") else {}
    plain = getattr(transformers, type(original).__name__).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        ours_logits, plain_logits = (network(input_ids=ids, **more)[0] for network in (ours, plain))
    torch.testing.assert_close(ours_logits, plain_logits, rtol=0, atol=1e-5)  # GELU rounds differently in one operation


def test_a_run_starts_from_a_hugging_face_directory(corpus, foreign_directory, parent, tmp_path):
    """The first loss is that of the directory's weights, as continued pretraining requires."""
    directory = tmp_path / "hub"
    shutil.copytree(parent / "export", directory)
    (directory / "gristmill.json").unlink()
    shutil.copy(corpus.directory / "tokenizer.json", directory)
    one = train(corpus, tmp_path / "one", steps=1, init=Init(str(directory)), seed=3)
    two = train(corpus, tmp_path / "two", steps=1, init=Init(str(parent), step=STEPS), seed=3)
    assert losses(one) == losses(two)
    config = json.loads((directory / "config.json").read_text())
    for field, value, message in [
        ("rms_norm_eps", 1e-5, "init.path: rms_norm_eps: .* has 1e-05, this run's model 1e-06"),
        ("num_key_value_heads", 4, "init.path: num_key_value_heads: .* has 4, this run's model 2"),
        ("model_type", "mistral", r"model.architecture: got llama \(llama\), .* holds 'mistral'"),
        (
            "rope_parameters",
            {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},
            "scales its rotary positions",
        ),
    ]:
        (directory / "config.json").write_text(json.dumps({**config, field: value}))
        with pytest.raises(ConfigError, match=message):
            train(corpus, tmp_path / "wrong", init=Init(str(directory)))
        shutil.rmtree(tmp_path / "wrong")
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    first, second = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)[200:202]
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=r"the tokenizer of .* differ \(2 of 400 ids, the first is 200\)"):
        train(corpus, tmp_path / "wrong", init=Init(str(directory)))


def test_a_run_with_a_checkpoint_resumes_and_a_finished_one_says_so_without_its_parent(
    corpus, parent, tmp_path, capsys
):
    shutil.copytree(parent, tmp_path / "parent")
    run = train(corpus, tmp_path / "run", steps=2, init=Init(str(tmp_path / "parent")))
    expected = losses(run)
    shutil.rmtree(tmp_path / "parent")
    words = ["pretrain", str(run / "resolved.yaml"), f"run={run}"]
    for step in ("init.step=null", f"init.step={STEPS}"):
        assert main([*words, step]) == 0
        assert "finished at step 2, nothing to do" in capsys.readouterr().out
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    for name in ("log.jsonl", "finished.json"):
        (run / name).unlink()
    assert main([*words, "init.optimizer=keep"]) == 2
    assert "init.optimizer: 'reset' -> 'keep'" in capsys.readouterr().err
    assert main([*words, "init.step=null"]) == 0
    assert losses(run) == pytest.approx({2: expected[2]}, abs=1e-6)
    shutil.rmtree(run / "checkpoints")
    (run / "finished.json").unlink()
    assert main(words) == 2
    assert "has no run.json, gristmill.json or config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer.json", None, r"init.path: .* has no tokenizer.json; put the one that it was trained with there"),
        ("tokenizer.json", "{", r"init.path: .*tokenizer.json: not a Hugging Face tokenizer.json"),
        ("config.json", "{", r"init.path: .*config.json cannot be read \(Expecting property name"),
        ("config.json", "[]", r"init.path: .*config.json holds no mapping; save the model again"),
    ],
)
def test_a_broken_hugging_face_directory_is_named_before_anything_is_written(
    corpus, parent, tmp_path, file, content, message
):
    directory = tmp_path / "hub"
    shutil.copytree(parent / "export", directory)
    (directory / "gristmill.json").unlink()
    if content is None:
        (directory / file).unlink()
    else:
        (directory / file).write_text(content)
    with pytest.raises(UserError, match=message):
        train(corpus, tmp_path / "run", steps=1, init=Init(str(directory)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["run", "export", "hugging_face"])
def test_a_parent_of_other_sizes_is_refused_before_anything_is_written(corpus, parent, tmp_path, capsys, kind):
    directory = parent if kind == "run" else parent / "export"
    if kind == "hugging_face":
        directory = tmp_path / "hub"
        shutil.copytree(parent / "export", directory)
        (directory / "gristmill.json").unlink()
    run, sizes = tmp_path / "run", ["data.sequence_length=32", "schedule.warmup_steps=0", "budget.steps=1"]
    words = ["pretrain", "llama_tiny", f"corpus={corpus.directory}", f"run={run}", f"init.path={directory}", *sizes]
    assert main([*words, "model.feed_forward=96"]) == 2
    field = "init.path: intermediate_size" if kind == "hugging_face" else "model.feed_forward: got 96"
    assert field in capsys.readouterr().err
    assert not run.exists()
