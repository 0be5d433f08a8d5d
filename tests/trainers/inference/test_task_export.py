"""Fine-tuned runs as bases and as exports: stock models with equal predictions, adapters, merged weights, and
what is refused.

The checkpoints hold randomly changed models, not trained ones.
"""

import json
import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from tests.trainers.adapters.finetuning_cells import TASKS
from tests.trainers.engine.heads.task_batches import tiny
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.adapters import METHODS
from trainers.adapters.adapter_files import load_adapter
from trainers.config.architecture import RECURRENT_RATES, fill
from trainers.config.finetuning import Encoding, Finetuning, HeadSettings
from trainers.config.job import BatchSize, Init, TrainingBudget
from trainers.data.examples.task_corpus import open_tasks, task_split
from trainers.engine.assembly import base_network, build_forward
from trainers.engine.forward import tensors
from trainers.inference.base import base_weights, open_base, trained_forward
from trainers.inference.model_export import export_checkpoint, load_trained, notes_of
from trainers.inference.predict import predict_file
from trainers.models import build_model
from trainers.recipes.recurrent import tiny_awd_lstm
from trainers.rows.task_outputs import join_outputs, outputs_of
from trainers.runs import checkpoint
from trainers.runs.parent import settle
from trainers.runs.run import fingerprints, open_run, read_run
from trainers.tasks.predictions import write_rows
from trainers.tasks.schema.task import Task
from trainers.training.begin import describe_new, initial_base

TEXTS = ["a good play, said one", "no", "they came late and left early", "what a day it was"]
COMMON = {"name": "toy", "files": dict.fromkeys(("train", "dev"), "rows.jsonl"), "leak": "report"}
AUTO = {
    "classify": "AutoModelForSequenceClassification",
    "regress": "AutoModelForSequenceClassification",
    "tag": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
    "choose": "AutoModelForMultipleChoice",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    rows = [
        {
            "a": text,
            "b": TEXTS[number - 1],
            "label": "xyz"[number % 3],
            "value": number / 2,
            "right": number % 2,
            "words": text.split(),
            "tags": ["OTU"[len(word) % 3] for word in text.split()],
            "answers": [{"text": text[:2], "answer_start": 0}],
            "candidates": [text[::-1], "b " + text],
        }
        for number, text in enumerate(TEXTS)
    ]
    folder = tmp_path_factory.mktemp("files")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def bases(corpus_directory, tmp_path_factory):
    """A function that returns the Hugging Face directory of a model of an architecture, made on first use."""
    made = {}

    def base(name):
        if name not in made:
            made[name] = LocalPath(tmp_path_factory.mktemp(name.replace(" ", "_")))
            model = replace(tiny(name, layers=4 if name == "modernbert" else 2), vocab_size=448)
            build_model(model, SPECIAL_IDS, 1).save_pretrained(made[name])
            shutil.copy(corpus_directory / "tokenizer.json", made[name])
        return made[name]

    return base


def job_of(base, files, kind, method="full", head=None, **fields):
    task = parse(Task, {**COMMON, "kind": kind, **TASKS[kind]}, "toy.yaml")
    return Finetuning(
        name="toy",
        model=replace(open_base(base).model, dropout=0.0),
        tasks=(task,),
        files=str(files),
        init=settle(Init(str(base))),
        method=METHODS[method](),
        head=HeadSettings(**(head or {})),
        batch=BatchSize(sequences=2, tokens=8),
        budget=TrainingBudget(steps=1, tokens=8),
        encoding=Encoding(max_length=64),
        **fields,
    )


def run_of(path, job):
    """Make a run whose checkpoint has noise added to all trained parameters, and return its model."""
    corpus = open_tasks(job)
    open_run(path, job, corpus)
    record = read_run(path)
    forward = build_forward(job, record["specials"], base_weights(job, record["specials"], record["parent"]))
    forward.eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in forward.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    state = ((n, {"weight": p.detach().clone()}) for n, p in forward.model.named_parameters() if p.requires_grad)
    checkpoint.save(path, 1, 8, fingerprints(job, corpus), state, keep=1)
    return forward


def predictions(forward, job):
    batches = list(task_split(open_tasks(job), job, "dev").batches(2, 0, 1))
    kind = forward.model.task_head.kind
    with torch.no_grad():
        parts = [
            outputs_of(kind, forward(predicts=True, **tensors(b, "cpu"))["predictions"].numpy(), b) for b in batches
        ]
    return join_outputs(parts), batches


def segments_of(batch):
    for ids, segments in zip(batch.inputs, batch.segments, strict=True):
        yield from (ids[segments == number] for number in range(segments.max() + 1))


def newest(run):
    return checkpoint.newest(run, pytest.fail)


CELLS = [
    ("bert", "classify"),
    ("roberta", "classify"),
    ("roberta", "choose"),
    ("modernbert", "span"),
    ("gpt", "regress"),
    ("gpt2", "tag"),
    ("gpt2", "classify"),
    ("llama", "span"),
    ("t5", "classify"),
    ("bart", "regress"),
    ("bert", "tag"),
]


@pytest.mark.long
def test_an_export_that_is_being_replaced_has_no_notes(tmp_path):
    assert notes_of(LocalPath(tmp_path / "export")) == []


def test_the_exported_tokenizer_keeps_the_longest_inputs_of_the_run(bases, files, tmp_path):
    import transformers

    job = replace(job_of(bases("t5"), files, "classify"), encoding=Encoding(max_length=600))
    assert job.model.positions == 512
    run = LocalPath(tmp_path / "run")
    run_of(run, job)
    export = export_checkpoint(run, run / "export")
    assert transformers.AutoTokenizer.from_pretrained(export).model_max_length == 600


@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_transformers_computes_the_same_from_the_export(name, kind, bases, files, tmp_path):
    import transformers

    job = job_of(bases(name), files, kind)
    run = LocalPath(tmp_path / "run")
    ours, batches = predictions(run_of(run, job), job)
    again, _ = predictions(trained_forward(run, newest(run)), job)
    assert np.array_equal(again.scores, ours.scores)
    export = export_checkpoint(run, run / "export")
    assert notes_of(export) == []
    model = getattr(transformers, AUTO[kind]).from_pretrained(export).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    if kind in ("classify", "tag"):
        assert list(model.config.id2label.values()) == TASKS[kind]["labels"]
    rows = [json.loads(line) for line in (files / "rows.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        if kind == "choose":
            texts = [(row["a"], candidate) for candidate in row["candidates"]]
        elif kind == "tag":
            texts = [(" ".join(row["words"]),)]
        else:
            texts = [{"regress": (row["a"],), "span": (row["b"], row["a"])}.get(kind, (row["a"], row["b"]))]
        given = [tokenizer(*each) for each in texts]
        read = [ids for batch in batches for ids in segments_of(batch)]
        assert all(any(np.array_equal(each["input_ids"], ids) for ids in read) for each in given)
        logits = []
        with torch.no_grad():
            for each in given:
                shape = (1, 1, -1) if kind == "choose" else (1, -1)
                made = model(**{key: torch.tensor(value).view(shape) for key, value in each.items()})
                logits.append(torch.stack([made.start_logits, made.end_logits], -1) if kind == "span" else made.logits)
        expected = torch.cat(logits).numpy()
        if kind in ("classify", "regress"):
            assert ours.scores[number] == pytest.approx(expected[0].squeeze(), abs=1e-5)
        elif kind == "choose":
            assert ours.scores[2 * number : 2 * number + 2] == pytest.approx(expected.ravel(), abs=1e-5)
        else:
            found = ours.scores[ours.offsets[number] : ours.offsets[number + 1]]
            assert all(np.isclose(expected[0], score, atol=1e-5).all(axis=1).any() for score in found)


def test_dropout_of_the_head_or_the_method_is_dropout_of_the_run(bases, files):
    plain = job_of(bases("bert"), files, "classify", method="lora")
    assert [
        job.drops
        for job in (
            plain,
            replace(plain, method=replace(plain.method, dropout=0.1)),
            replace(plain, head=HeadSettings(dropout=0.1)),
            replace(plain, model=replace(plain.model, dropout=0.1)),
        )
    ] == [False, True, True, True]


def test_each_rate_of_a_recurrent_model_is_dropout_of_the_run():
    recipe = tiny_awd_lstm()
    none = dict.fromkeys(("dropout", *RECURRENT_RATES), 0.0)
    models = [replace(recipe.model, **rates) for rates in (none, *({**none, name: 0.1} for name in none))]
    assert [replace(recipe, model=model).drops for model in models] == [False] + [True] * 5


@pytest.mark.long
def test_what_a_run_adds_to_its_base_is_named(bases, files, tmp_path):
    for method, expected in (
        ("full", "head of the task: dense, output (1,155 parameters)"),
        ("lora", "head of the task: dense, output (1,155 parameters); lora: 8 tensors, the first is "),
    ):
        job = job_of(bases("roberta"), files, "classify", method=method)
        run = LocalPath(tmp_path / method)
        forward = run_of(run, job)
        assert describe_new(forward, job, initial_base(job, open_tasks(job), run)).startswith(expected)
    following = job_of(tmp_path / "full", files, "regress")
    run = LocalPath(tmp_path / "second")
    forward = run_of(run, following)
    found = describe_new(forward, following, initial_base(following, open_tasks(following), run))
    assert found == "head of the task: output (33 parameters)"


def test_a_base_that_is_gone_is_named_with_what_needs_it(bases, files, tmp_path):
    first, second = LocalPath(tmp_path / "first"), LocalPath(tmp_path / "second")
    run_of(first, job_of(bases("bert"), files, "classify"))
    job = job_of(first, files, "classify", method="lora")
    run_of(second, job)
    (first / "checkpoints" / "step-00000001").rename(tmp_path / "pruned")
    with pytest.raises(UserError, match=r"has no checkpoint of step 1; .* A run begun from .*first needs it unchanged"):
        trained_forward(second, newest(second))
    shutil.rmtree(first)
    with pytest.raises(UserError, match=r"first has no run.json.* put it back, or begin another run from an export"):
        trained_forward(second, newest(second))


@pytest.mark.long
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "bart"])
def test_an_intermediate_task_leaves_the_hidden_layer_of_its_head(name, bases, files, tmp_path):
    job = job_of(bases(name), files, "classify")
    run = LocalPath(tmp_path / "run")
    model = run_of(run, job).model
    export = export_checkpoint(run, run / "export")
    for base in (run, export):
        following = job_of(base, files, "regress")
        second = LocalPath(tmp_path / f"{base.name}-second")
        open_run(second, following, open_tasks(following))
        weights = base_weights(following, read_run(second)["specials"], read_run(second)["parent"])
        head = build_forward(following, SPECIAL_IDS, weights).model.task_head
        assert torch.equal(head.dense.weight, model.task_head.dense.weight)
        assert head.output.weight.shape[0] == 1
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad and not n.startswith("task_head.")}
        assert all(torch.equal(weights[n], p) for n, p in trained.items())
        assert not any(n.startswith(("cls.", "lm_head.")) for n in weights)


@pytest.mark.long
def test_a_run_of_lora_is_an_adapter_and_merged_a_stock_model_and_a_base(bases, files, tmp_path):
    import transformers

    job = job_of(bases("roberta"), files, "classify", method="lora")
    run = LocalPath(tmp_path / "run")
    ours, _ = predictions(run_of(run, job), job)
    export = export_checkpoint(run, run / "export")
    assert sum(file.stat().st_size for file in (export / "adapter").iterdir()) < 100_000
    network = base_network(job, SPECIAL_IDS, base_weights(job, SPECIAL_IDS, read_run(run)["parent"]))
    network.task_head = trained_forward(run, newest(run)).model.task_head
    load_adapter(export / "adapter", network, "roberta", "encoder")
    forward = trained_forward(run, newest(run))
    forward.model = network.eval()
    assert predictions(forward, job)[0].scores == pytest.approx(ours.scores, abs=1e-6)
    for refused in (open_base, load_trained):
        with pytest.raises(
            UserError, match="holds an adapter without its base; give the run, or export it with --merge"
        ):
            refused(export)
    merged = export_checkpoint(run, tmp_path / "merged", merge=True)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(merged).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(merged)
    with torch.no_grad():
        logits = [model(**tokenizer(text, TEXTS[n - 1], return_tensors="pt")).logits[0] for n, text in enumerate(TEXTS)]
    assert torch.stack(logits).numpy() == pytest.approx(ours.scores, abs=1e-5)
    following = job_of(run, files, "regress")
    second = LocalPath(tmp_path / "second")
    open_run(second, following, open_tasks(following))
    weights = base_weights(following, SPECIAL_IDS, read_run(second)["parent"])
    name = "roberta.encoder.layer.1.attention.self.query.weight"
    assert torch.allclose(weights[name], dict(model.named_parameters())[name], atol=1e-6)
    assert torch.equal(weights["task_head.dense.weight"], forward.model.task_head.dense.weight)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind", "method"),
    [
        ("bert", "classify", "lora"),
        ("roberta", "tag", "lokr"),
        ("modernbert", "classify", "ia3"),
        ("gpt2", "span", "lora"),
        ("llama", "regress", "loha"),
        ("t5", "classify", "lora"),
        ("bart", "classify", "adalora"),
    ],
)
def test_peft_loads_an_adapter_with_the_head_of_its_task(name, kind, method, bases, files, tmp_path):
    import peft
    import transformers

    job = job_of(bases(name), files, kind, method=method)
    run = LocalPath(tmp_path / "run")
    ours, batches = predictions(run_of(run, job), job)
    adapter = export_checkpoint(run, run / "export") / "adapter"
    assert not (adapter / "task_head.safetensors").exists()
    labels = {"num_labels": 3} if kind in ("classify", "tag") else {"num_labels": 2 if kind == "span" else 1}
    stock = getattr(transformers, AUTO[kind]).from_pretrained(bases(name), **labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.PeftModel.from_pretrained(stock, adapter).eval()
    found = []
    for batch in batches:
        for ids in segments_of(batch):
            given = torch.from_numpy(ids)[None]
            ends = (given == SPECIAL_IDS["<sep>"]).long()
            options = {"token_type_ids": (ends.cumsum(1) - ends).clamp(max=1)} if name == "bert" else {}
            with torch.no_grad():
                made = model(given[None] if kind == "choose" else given, **options)
            logits = torch.stack([made.start_logits, made.end_logits], -1) if kind == "span" else made.logits
            found += logits[0].tolist() if kind in ("tag", "span") else [logits[0].squeeze().tolist()]
    assert all(np.isclose(score, found, atol=1e-5).reshape(len(found), -1).all(axis=1).any() for score in ours.scores)


def test_an_adapter_on_another_base_is_refused_whatever_the_base_lacks(bases, files, tmp_path):
    """A base with another language-model head counts as the same base; a base with other weights elsewhere
    does not.
    """
    job = job_of(bases("roberta"), files, "classify", method="lora")
    run = LocalPath(tmp_path / "run")
    run_of(run, job)
    adapter = export_checkpoint(run, run / "export") / "adapter"
    model = replace(job.model, vocab_size=448)
    network = build_model(model, SPECIAL_IDS, 1)
    for name, parameter in network.named_parameters():
        if name.startswith("lm_head") and name.endswith("dense.weight"):
            torch.nn.init.zeros_(parameter)
    network.task_head = trained_forward(run, newest(run)).model.task_head
    load_adapter(adapter, network, "roberta", "encoder")
    other = build_model(model, SPECIAL_IDS, 2)
    with pytest.raises(ConfigError, match="the adapter was trained on another base"):
        load_adapter(adapter, other, "roberta", "encoder")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind", "method", "head"),
    [
        ("bert", "classify", "full", {}),
        ("gpt", "span", "full", {}),
        ("modernbert", "tag", "features", {}),
        ("roberta", "classify", "prefix", {"pooling": "mean"}),
        ("gpt2", "generate", "lora", {}),
    ],
)
def test_an_export_predicts_what_its_run_does(name, kind, method, head, bases, files, tmp_path):
    job = job_of(bases(name), files, kind, method=method, head=head)
    run = LocalPath(tmp_path / "run")
    run_of(run, job)
    rows = [json.loads(line) for line in (files / "rows.jsonl").read_text().splitlines()]
    roles = {role: column for role, column in TASKS[kind]["columns"].items() if isinstance(column, str)}
    for number, row in enumerate(rows):
        line = json.dumps({role: row[column] for role, column in roles.items()})
        (tmp_path / f"part-{number}.jsonl").write_text(line + "\n")
    given = LocalPath(tmp_path / "part-*.jsonl")
    expected = predict_file(run, given)
    export = export_checkpoint(run, tmp_path / "export")
    run.rename(tmp_path / "gone")
    for path in (export, export / "adapter") if job.method.freezes else (export,):
        found = predict_file(LocalPath(path), given)
        assert found.ids == expected.ids == [str(number) for number in range(len(rows))]
        if expected.scores is not None:
            assert found.scores == pytest.approx(expected.scores, abs=1e-6)
        write_rows(found, tmp_path / "found.jsonl")
        write_rows(expected, tmp_path / "expected.jsonl")
        predicted = [
            [json.loads(line)["prediction"] for line in (tmp_path / f"{which}.jsonl").read_text().splitlines()]
            for which in ("found", "expected")
        ]
        assert predicted[0] == predicted[1]
    if job.method.freezes:
        copied = LocalPath(tmp_path / "copied")
        shutil.copytree(bases(name), copied)
        again = predict_file(LocalPath(export), given, base=copied)
        assert again.ids == expected.ids
        model = replace(job.model, vocab_size=448)
        build_model(model, SPECIAL_IDS, 7).save_pretrained(copied)
        with pytest.raises(ConfigError, match="the adapter was trained on another base"):
            predict_file(LocalPath(export), given, base=copied)


def test_a_file_whose_name_tells_no_format_is_refused(bases, files, tmp_path):
    run = LocalPath(tmp_path / "run")
    run_of(run, job_of(bases("bert"), files, "classify"))
    for name in ("texts.txt", "texts.JSONL", "none.gz"):
        message = rf"{name}: --input: the suffix names no format; expected \.jsonl, .*; rename the file"
        with pytest.raises(UserError, match=message):
            predict_file(run, LocalPath(tmp_path / name))


def test_a_head_without_a_stock_class_is_written_for_us_alone(bases, files, tmp_path):
    import transformers

    for name, kind, head in (("gpt", "span", {}), ("bert", "classify", {"pooling": "mean"})):
        job = job_of(bases(name), files, kind, head=head)
        run = LocalPath(tmp_path / name)
        model = run_of(run, job).model
        export = export_checkpoint(run, run / "export")
        assert "transformers does not load it" in notes_of(export)[0]
        with pytest.raises(ValueError, match=f"gristmill_{name}"):
            transformers.AutoModel.from_pretrained(export)
        following = job_of(export, files, kind)
        second = LocalPath(tmp_path / f"{name}-second")
        open_run(second, following, open_tasks(following))
        weights = base_weights(following, SPECIAL_IDS, read_run(second)["parent"])
        trained = {n for n, p in model.named_parameters() if p.requires_grad}
        assert trained == set(weights)


@pytest.mark.parametrize("method", ["prompt", "p_tuning", "prefix", "p_tuning_v2"])
def test_prompts_that_only_inputs_of_the_task_have_are_not_left_out_of_other_texts(bases, files, tmp_path, method):
    run = LocalPath(tmp_path / "run")
    run_of(run, job_of(bases("gpt2"), files, "generate", method=method))
    with pytest.raises(UserError, match=f"was fine-tuned with {method}, and only the inputs of its task begin with"):
        load_trained(run)


def test_what_cannot_be_a_base_is_one_line(bases, files, tmp_path):
    job = job_of(bases("bert"), files, "classify", method="prefix")
    run = LocalPath(tmp_path / "run")
    run_of(run, job)
    following = job_of(run, files, "classify")
    second = LocalPath(tmp_path / "second")
    open_run(second, following, open_tasks(following))
    with pytest.raises(
        ConfigError, match="was fine-tuned with prefix, whose parameters cannot be merged into weights of a base"
    ):
        base_weights(following, SPECIAL_IDS, read_run(second)["parent"])
    with pytest.raises(UserError, match="--merge: the run's method is prefix"):
        export_checkpoint(run, run / "export", merge=True)
    assert not (run / "export").exists()
    with pytest.raises(UserError, match="holds a model with the head of a task, which writes no text"):
        load_trained(run)
    wide = replace(job, model=fill(replace(job.model, feed_forward=128), 448))
    with pytest.raises(ConfigError, match=r"model.feed_forward: got 128, the model of init.path has 64; leave it out"):
        base_weights(wide, SPECIAL_IDS, read_run(run)["parent"])
    bare = LocalPath(tmp_path / "bare")
    shutil.copytree(bases("bert"), bare)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"bare has no tokenizer.json; save its tokenizer there"):
        open_base(bare)


def test_writing_text_needs_the_output_layer(bases, files, tmp_path):
    import transformers

    job = job_of(bases("gpt2"), files, "generate")
    headless = LocalPath(tmp_path / "headless")
    untied = replace(job.model, tied=False)
    network = build_model(untied, SPECIAL_IDS, 0)
    network.transformer.save_pretrained(headless)
    shutil.copy(bases("gpt2") / "tokenizer.json", headless)
    assert transformers.AutoConfig.from_pretrained(headless).tie_word_embeddings is False
    for kind in ("classify", "generate"):
        following = job_of(headless, files, kind)
        run = LocalPath(tmp_path / kind)
        open_run(run, following, open_tasks(following))
        record = read_run(run)
        if kind == "classify":
            assert "lm_head.weight" not in base_weights(following, SPECIAL_IDS, record["parent"])
        else:
            with pytest.raises(
                UserError, match=r"has no tensor lm_head.weight \(1 are missing\), which is needed to generate text"
            ):
                base_weights(following, SPECIAL_IDS, record["parent"])


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_every_method_exports(method, bases, files, tmp_path):
    job = job_of(bases("bert"), files, "classify", method=method)
    run = LocalPath(tmp_path / "run")
    ours, _ = predictions(run_of(run, job), job)
    export = export_checkpoint(run, run / "export")
    assert (export / "adapter").exists() == job.method.freezes
    assert not list(export.rglob("*.bin"))
    if job.method.freezes:
        network = base_network(job, SPECIAL_IDS, base_weights(job, SPECIAL_IDS, read_run(run)["parent"]))
        forward = trained_forward(run, newest(run))
        network.task_head = forward.model.task_head
        load_adapter(export / "adapter", network, "bert", "encoder")
        forward.model = network.eval()
        assert predictions(forward, job)[0].scores == pytest.approx(ours.scores, abs=1e-5)
