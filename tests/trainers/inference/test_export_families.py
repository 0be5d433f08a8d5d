"""Exports of every family: plain `transformers` loads them with the same loss, or must refuse them."""

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from gristmill.errors import ConfigError
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.__main__ import main
from trainers.config.architecture import PRETRAINING_ONLY
from trainers.data.packed_corpus import corpus_of, open_corpus, validation_data
from trainers.evaluation.evaluate import evaluate
from trainers.inference.fill_mask import fill_mask
from trainers.inference.generate import Sampling, generate
from trainers.inference.model_export import export_checkpoint, load_trained
from trainers.models import MODELS, build_model, stack_parameters, why_not_stock
from trainers.models.encoders.disentangled.disentangled_embedding import merge_embeddings
from trainers.models.interface import Inputs
from trainers.objectives import OBJECTIVES
from trainers.objectives.causal import Causal
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.masked import Masked
from trainers.objectives.mixture import ObjectiveMixture
from trainers.objectives.shared.prompt_format import PromptFormat
from trainers.objectives.spans.denoising import Denoising
from trainers.recipes import RECIPES
from trainers.rows.batch import IGNORED
from trainers.runs import checkpoint
from trainers.runs.published_model import published_weights
from trainers.runs.resolve import resolve
from trainers.runs.run import fingerprints, open_run

pytestmark = pytest.mark.long

AUTO = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder_decoder": "AutoModelForSeq2SeqLM",
}


def changed(recipe, objective=None, **model):
    config = RECIPES[recipe]()
    return replace(config, model=replace(config.model, **model), objective=objective or config.objective)


RUNS = {
    "albert, pairs": changed("tiny_albert", layer_groups=2, layers=4),
    "albert, shared feed-forward": changed("tiny_albert", shared_parts="feed_forward"),
    "awd_lstm": changed("tiny_awd_lstm"),
    "bart": changed("tiny_bart", Denoising(permute_sentences=False)),
    "bert, pairs": changed("tiny_bert"),
    "bert, translation": changed("tiny_translation_lm"),
    "canine": changed("tiny_canine"),
    "canine, characters": changed("tiny_canine_c"),
    "deberta": changed("tiny_deberta", mask_decoder=False),
    "deberta, mask decoder": changed("tiny_deberta"),
    "deberta, version 1": changed("tiny_deberta_v1", mask_decoder=False),
    "deberta, version 1, mask decoder": changed("tiny_deberta_v1"),
    "deberta, replaced tokens": changed("tiny_deberta_v3", mask_decoder=False),
    "deberta, replaced tokens, mask decoder": changed("tiny_deberta_v3", embedding_sharing="shared"),
    "electra": changed("tiny_electra"),
    "electra, no generator": changed("tiny_electra", Masked(), generator_size=None),
    "elmo": changed("tiny_elmo"),
    "elmo, characters": changed("tiny_character_elmo"),
    "gpt": changed("tiny_gpt"),
    "gpt2, relative": changed("tiny_gpt2", position="relative"),
    "gru": changed("tiny_skip_thought"),
    "llama, gap": changed("llama_tiny", FillInTheMiddle()),
    "mixture": changed("tiny_t5", ObjectiveMixture()),
    "mixture, one stack": changed("tiny_prefix_lm", ObjectiveMixture()),
    "modernbert": changed("tiny_modernbert"),
    "prefix": changed("tiny_prefix_lm"),
    "roberta": changed("tiny_roberta"),
    "roberta, copies": changed("tiny_simcse"),
    "roberta, marks of rows": changed("tiny_roberta", Masked(marks="rows")),
    "roberta, neighbours": changed("tiny_quick_thought"),
    "roberta, sinusoids": changed("tiny_roberta", position="sinusoidal"),
    "spanbert": changed("tiny_spanbert"),
    "t5": changed("tiny_t5"),
    "t5 1.1": changed("tiny_t5_v1_1"),
    "t5, gap sentences": changed("tiny_pegasus"),
    "t5, pairs": changed("tiny_multitask"),
    "t5, salient spans": changed("tiny_salient_spans"),
    "t5, tied stacks": changed("tiny_t5_shared"),
    "xlnet": changed("tiny_xlnet"),
}
NOT_STOCK = {"awd_lstm", "elmo", "elmo, characters", "gru", "gpt2, relative"}
CAUSAL_IN_TRANSFORMERS = {
    "mixture, one stack",
    "prefix",
}  # plain transformers loads them, and has no prefix that sees itself
OTHER_IN_TRANSFORMERS = {
    *("canine", "canine, characters", "xlnet"),
    *("deberta, mask decoder", "deberta, version 1, mask decoder", "deberta, replaced tokens, mask decoder"),
}
CONTRASTS = {"roberta, copies", "roberta, neighbours"}  # whose losses are of vectors


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


@pytest.fixture(scope="module")
def made(corpus_directory, salient_directory, tmp_path_factory):
    """{name: (run, export)}. Random noise is added to every weight of each checkpoint, so that none has its
    initial value.
    """
    found = {}
    for name, config in RUNS.items():
        path = tmp_path_factory.mktemp("runs") / "run"
        objective = config.objective
        directory = salient_directory if objective.span_types or objective.needs_pairs else corpus_directory
        config = replace(config, data=replace(config.data, corpora=(str(directory),)))
        corpus = corpus_of(config)
        config = resolve(config, corpus)
        open_run(path, config, corpus)
        model = build_model(config.model, corpus.tokenizer.specials, seed=3)
        noise = torch.Generator().manual_seed(1)
        state = (
            (key, {"weight": (tensor + 0.2 * torch.randn(tensor.shape, generator=noise)).detach()})
            for key, tensor in model.named_parameters()
        )
        checkpoint.save(path, 7, 70, fingerprints(config, corpus), state, keep=1)
        found[name] = (path, export_checkpoint(path, path / "export"))
    return found


def plain_losses(export, config):
    """Return the validation losses of each source, computed by a plain `transformers` class that reads each
    document (or pair) on its own.
    """
    import transformers

    name = "AutoModelForPreTraining" if config.model.sentence_head else AUTO[config.model.family]
    directory = export if config.model.generator_size is None else export / "generator"
    model = getattr(transformers, name).from_pretrained(directory).eval()
    corpus = corpus_of(config)
    data = validation_data(corpus, config, 2000)
    sums = {source.name: {"loss": [], "sentence_loss": []} for source in data.sources}
    for batch in data.batches(8, 0, 1):
        for row in range(len(batch.inputs)):
            ours = sums[data.sources[batch.source[row]].name]
            documents = range(batch.segments[row].max(initial=-1) + 1)
            held = [(batch.segments[row] == d, batch.target_segments[row] == d) for d in documents]
            if batch.labels is not None:
                held = [(batch.segments[row] >= 0,) * 2]
            for inside, place in held:
                labels = torch.from_numpy(batch.targets[row][place])
                if not (labels != IGNORED).any():
                    continue
                arguments = {"input_ids": torch.from_numpy(batch.inputs[row][inside])[None]}
                if batch.decoder is not None:
                    arguments["decoder_input_ids"] = torch.from_numpy(batch.decoder.inputs[row][place])[None]
                if batch.token_types is not None:
                    arguments["token_type_ids"] = torch.from_numpy(batch.token_types[row][inside])[None]
                if config.objective.needs_pairs and batch.decoder is None:  # each side counts its own
                    arguments["position_ids"] = torch.from_numpy(batch.positions[row][inside])[None]
                with torch.no_grad():
                    output = model(**arguments)
                logits = output.logits if batch.labels is None else output.prediction_logits
                nats = torch.nn.functional.cross_entropy(logits[0], labels, ignore_index=IGNORED, reduction="none")
                ours["loss"] += nats[labels != IGNORED].tolist()
                if batch.labels is not None and batch.labels[row] != IGNORED:
                    pairs = output.sop_logits if "sop_logits" in output else output.seq_relationship_logits
                    ours["sentence_loss"].append(-float(pairs[0].log_softmax(0)[batch.labels[row]]))
    return {
        source: {name: float(np.mean(values)) for name, values in lists.items() if values}
        for source, lists in sums.items()
        if lists["loss"]
    }


def losses(place):
    return {
        source: {name: value for name, value in found.items() if name in ("loss", "sentence_loss")}
        for source, found in evaluate(place, tokens=2000)["sources"].items()
    }


@pytest.mark.parametrize(
    "name", sorted(set(RUNS) - NOT_STOCK - CAUSAL_IN_TRANSFORMERS - OTHER_IN_TRANSFORMERS - CONTRASTS)
)
def test_an_export_has_the_runs_loss_in_plain_transformers(name, made):
    run, export = made[name]
    found, again, plain = losses(run), losses(export), plain_losses(export, load_trained(run).config)
    assert found.keys() == again.keys() == plain.keys()
    for source in found:
        assert found[source] == pytest.approx(plain[source], abs=1e-4)
        assert again[source] == pytest.approx(found[source], abs=1e-5)
    assert json.loads((export / "gristmill.json").read_text())["transformers"] == {"loads": True, "notes": []}


def test_a_model_of_every_objective_is_exported():
    assert {config.objective.kind for config in RUNS.values()} == set(OBJECTIVES)


@pytest.mark.parametrize("name", sorted(CONTRASTS))
def test_a_model_of_vectors_opens_in_transformers_with_the_runs_logits_and_its_export_has_the_runs_loss(name, made):
    from transformers import AutoModelForMaskedLM

    run, export = made[name]
    plain, ours = AutoModelForMaskedLM.from_pretrained(export).eval(), load_trained(run).model
    ids, mask = torch.arange(200, 240)[None], torch.ones(1, 1, 40, 40, dtype=torch.bool)
    architecture = MODELS["roberta"]
    with torch.no_grad():
        states = architecture.hidden(ours, Inputs(ids, torch.arange(40)[None], mask))
        torch.testing.assert_close(states, plain.roberta(ids).last_hidden_state, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(architecture.logits(ours, states), plain(ids).logits, atol=1e-4, rtol=1e-4)
    assert losses(export) == {source: pytest.approx(its, abs=1e-5) for source, its in losses(run).items()}
    (note,) = json.loads((export / "gristmill.json").read_text())["transformers"]["notes"]
    assert "use the states" in note


def test_discriminator_and_generator_each_open_in_transformers_with_the_runs_logits(made):
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

    run, export = made["electra"]
    ours, again = load_trained(run).model, load_trained(export).model
    state = ours.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in again.state_dict().items())
    assert again.generator.electra.embeddings is again.electra.embeddings
    discriminator = AutoModelForPreTraining.from_pretrained(export).eval()
    generator = AutoModelForMaskedLM.from_pretrained(export / "generator").eval()
    assert [type(each).__name__ for each in (discriminator, generator)] == [
        "ElectraForPreTraining",
        "ElectraForMaskedLM",
    ]
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (export, export / "generator")]
    given, same = (tokenizer("abc <mask> def", "gh", return_tensors="pt") for tokenizer in tokenizers)
    assert given["token_type_ids"].unique().tolist() == [0, 1]
    assert torch.equal(given["input_ids"], same["input_ids"])
    seen = torch.ones(1, 1, *(2 * [given["input_ids"].shape[1]]), dtype=torch.bool)
    inputs = Inputs(given["input_ids"], torch.arange(seen.shape[-1])[None], seen, given["token_type_ids"])
    architecture = MODELS["electra"]
    with torch.no_grad():
        states = architecture.hidden(ours.generator, inputs)
        torch.testing.assert_close(architecture.logits(ours.generator, states), generator(**given).logits)
        torch.testing.assert_close(architecture.replaced(ours, inputs), discriminator(**given).logits)
    assert fill_mask(export, "abc <mask> def", top=2) == [
        [(token, pytest.approx(share, abs=1e-5)) for token, share in tokens]
        for tokens in fill_mask(run, "abc <mask> def", top=2)
    ]
    (everything,) = fill_mask(run, "abc <mask> def", top=10**6)  # special tokens are not among them
    assert sum(share for _, share in everything) == pytest.approx(1, abs=1e-4)
    assert everything[-1][1] > 0


@pytest.mark.parametrize("name", ["deberta, replaced tokens", "deberta, replaced tokens, mask decoder"])
def test_a_discriminator_of_deberta_opens_in_transformers_with_the_embeddings_of_both_tables(name, made):
    from transformers import AutoModel, AutoModelForMaskedLM
    from transformers.utils import logging as transformers_logging

    run, export = made[name]
    ours, again = load_trained(run).model, load_trained(export).model
    state, found = ours.state_dict(), again.state_dict()
    for key, tensor in state.items():
        torch.testing.assert_close(found[key], tensor, atol=1e-6, rtol=0)
    assert losses(export) == {source: pytest.approx(its, abs=1e-5) for source, its in losses(run).items()}
    plain = AutoModel.from_pretrained(export).eval()
    assert type(plain).__name__ == "DebertaV2Model"
    assert type(AutoModelForMaskedLM.from_pretrained(export / "generator")).__name__ == "DebertaV2ForMaskedLM"
    # A task begins with the same tensors, from the run and from its export.
    sizes = replace(load_trained(run).config.model, **PRETRAINING_ONLY)
    merged = merge_embeddings(checkpoint.read_weights(checkpoint.pick(run, print)))
    transformers_logging.enable_progress_bar()
    weights, _ = published_weights(export, sizes)
    assert transformers_logging.is_progress_bar_enabled()
    for key in stack_parameters(build_model(sizes, SPECIAL_IDS, 0), sizes):
        torch.testing.assert_close(weights[key], merged[key], atol=1e-6, rtol=0)
    ids, mask = torch.arange(200, 240)[None], torch.ones(1, 1, 40, 40, dtype=torch.bool)
    with torch.no_grad():
        states = MODELS["deberta_v2"].hidden(ours, Inputs(ids, torch.arange(40)[None], mask))
        torch.testing.assert_close(states, plain(ids).last_hidden_state, atol=1e-4, rtol=1e-4)


def test_a_canine_opens_in_transformers_and_reads_the_characters_of_a_text_there(made):
    from transformers import AutoModel, AutoTokenizer

    run, export = made["canine"]
    plain, tokenizer, ours = (
        AutoModel.from_pretrained(export).eval(),
        AutoTokenizer.from_pretrained(export),
        load_trained(run),
    )
    assert (type(plain).__name__, type(tokenizer).__name__) == ("CanineModel", "CanineTokenizer")
    text = "abc défg 東"
    given = tokenizer(text, padding="max_length", max_length=128, return_tensors="pt")
    encoder = Encoder.load(str(export / "tokenizer.json"))
    tokens, _ = encoder.encode(pa.array([text], pa.large_string()))
    ids = torch.tensor([[SPECIAL_IDS["<cls>"], *tokens.tolist(), SPECIAL_IDS["<sep>"]]])
    mask = torch.ones(1, 1, *2 * [ids.shape[1]], dtype=torch.bool)
    with torch.no_grad():
        states = MODELS["canine"].hidden(ours.model, Inputs(ids, torch.zeros_like(ids), mask))[0]
        expected = plain(**given).last_hidden_state[0]
    for place, character in ((0, 0), (1, 1), (-1, len(text) + 1)):
        torch.testing.assert_close(states[place], expected[character], atol=1e-5, rtol=1e-5)
    assert losses(export) == {source: pytest.approx(its, abs=1e-5) for source, its in losses(run).items()}
    assert len(json.loads((export / "gristmill.json").read_text())["transformers"]["notes"]) == 2
    sizes = load_trained(run).config.model
    weights, absent = published_weights(export, sizes)
    assert not absent
    assert torch.equal(weights["cls.decoder.weight"], ours.model.cls.decoder.weight)


def test_a_canine_that_predicts_characters_exports_its_decoder_and_its_encoder_begins_a_task(made):
    from transformers import AutoModel

    run, export = made["canine, characters"]
    state, again = load_trained(run).model.state_dict(), load_trained(export).model.state_dict()
    assert state.keys() == again.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())
    assert losses(export) == {source: pytest.approx(its, abs=1e-5) for source, its in losses(run).items()}
    found = evaluate(run, tokens=2000)  # a unigram model of 1,024 buckets, of which text has some tens
    assert 0 < found["unigram_loss"] < np.log(1024) - 1
    plain = AutoModel.from_pretrained(export).state_dict()
    encoder = {name.removeprefix("canine."): tensor for name, tensor in state.items() if name.startswith("canine.")}
    assert all(torch.equal(plain[name], tensor) for name, tensor in encoder.items())
    notes = json.loads((export / "gristmill.json").read_text())["transformers"]["notes"]
    assert "no decoder of characters" in notes[1]
    sizes = replace(load_trained(run).config.model, **PRETRAINING_ONLY)
    weights, _ = published_weights(export, sizes)
    for name in stack_parameters(build_model(sizes, SPECIAL_IDS, 0), sizes):
        assert torch.equal(weights[name], state[name])
    with pytest.raises(ConfigError, match="was trained with masked_characters, which predicts no masks"):
        fill_mask(run, "abc <mask> def")


def test_an_xlnet_opens_in_transformers_with_the_runs_logits_and_predicts_no_masks(made):
    from transformers import AutoModelForCausalLM

    run, export = made["xlnet"]
    plain, ours = AutoModelForCausalLM.from_pretrained(export).eval(), load_trained(run).model
    assert type(plain).__name__ == "XLNetLMHeadModel"
    ids, mask = torch.arange(200, 220)[None], torch.ones(1, 1, 20, 20, dtype=torch.bool)
    architecture, order = MODELS["xlnet"], torch.tensor([[7, 3]])
    unseen = torch.zeros(1, 20, 20)
    unseen[:, :, [3, 7]] = 1  # the fourth token is predicted from the eighth, and sees it
    unseen[:, 3, 7] = 0
    mapping = torch.nn.functional.one_hot(order, 20).float()
    with torch.no_grad():
        found = architecture.logits(ours, architecture.hidden(ours, Inputs(ids, ids, mask, order=order)))
        expected = plain(ids, perm_mask=unseen, target_mapping=mapping).logits
    torch.testing.assert_close(found[0, [7, 3]], expected[0], atol=1e-4, rtol=1e-4)
    assert losses(export) == {source: pytest.approx(its, abs=1e-5) for source, its in losses(run).items()}
    with pytest.raises(ConfigError, match="holds xlnet, which predicts no masks; give another encoder"):
        fill_mask(export, "abc <mask> def")


@pytest.mark.parametrize("name", sorted(NOT_STOCK))
def test_what_transformers_cannot_compute_it_refuses_and_our_commands_load(name, made, capsys):
    import transformers

    run, export = made[name]
    with pytest.raises(ValueError, match="does not recognize this architecture"):
        transformers.AutoModelForSeq2SeqLM.from_pretrained(export)
    record = json.loads((export / "gristmill.json").read_text())["transformers"]
    assert not record["loads"]
    assert why_not_stock(RUNS[name].model) in record["notes"][0]
    assert main(["export", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(export), f"note   {record['notes'][0]}"]
    assert evaluate(export, tokens=2000)["loss"] == pytest.approx(evaluate(run, tokens=2000)["loss"], abs=1e-5)


def test_a_t5_with_an_output_layer_of_its_own_is_plain_transformers(made):
    import transformers

    run, export = made["t5 1.1"]
    ours, ids = load_trained(run).model, torch.arange(200, 240)[None]
    assert json.loads((export / "config.json").read_text())["architectures"] == ["T5ForConditionalGeneration"]
    for name in ("T5ForConditionalGeneration", "AutoModelForSeq2SeqLM"):
        plain = getattr(transformers, name).from_pretrained(export).eval()
        assert not torch.equal(plain.lm_head.weight, plain.shared.weight)
        with torch.no_grad():
            mine, theirs = (network(input_ids=ids, decoder_input_ids=ids).logits for network in (ours, plain))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=2e-4)  # GELU in one operation, or in seven


def test_a_batch_of_prompts_is_padded_on_the_left_for_a_decoder_alone(made):
    from transformers import AutoTokenizer

    sides = {name: AutoTokenizer.from_pretrained(made[name][1]).padding_side for name in ("gpt", "roberta", "t5")}
    assert sides == {"gpt": "left", "roberta": "right", "t5": "right"}


def test_a_model_with_a_prefix_says_that_transformers_attends_otherwise(made):
    run, export = made["prefix"]
    record = json.loads((export / "gristmill.json").read_text())["transformers"]
    assert record["loads"]
    assert "bidirectional attention" in record["notes"][0]
    ours, again = losses(run), losses(export)
    plain = plain_losses(export, load_trained(run).config)
    for source, found in ours.items():
        assert again[source] == pytest.approx(found, abs=1e-5)
        assert abs(plain[source]["loss"] - found["loss"]) > 1e-3


@pytest.mark.parametrize(
    ("name", "architecture"),
    [("deberta, mask decoder", "deberta_v2"), ("deberta, version 1, mask decoder", "deberta")],
)
def test_a_model_with_a_mask_decoder_says_that_transformers_has_other_logits_and_the_same_layers(
    name, architecture, made
):
    from transformers import AutoModelForMaskedLM

    run, export = made[name]
    record = json.loads((export / "gristmill.json").read_text())["transformers"]
    assert record["loads"]
    assert "enhanced mask decoder" in record["notes"][0]
    found, again = losses(run), losses(export)
    for source, its in found.items():
        assert again[source] == pytest.approx(its, abs=1e-5)
    plain, ours = AutoModelForMaskedLM.from_pretrained(export).eval(), load_trained(run).model
    ids, mask = torch.arange(200, 240)[None], torch.ones(1, 1, 40, 40, dtype=torch.bool)
    with torch.no_grad():
        table, ours.deberta.embeddings.position_embeddings = ours.deberta.embeddings.position_embeddings, None
        states = MODELS[architecture].hidden(ours, Inputs(ids, torch.arange(40)[None], mask))
        torch.testing.assert_close(states, plain.deberta(ids).last_hidden_state, atol=1e-4, rtol=1e-4)
        ours.deberta.embeddings.position_embeddings = table
        decoded = MODELS[architecture].hidden(ours, Inputs(ids, torch.arange(40)[None], mask))
    assert (decoded - states).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "marks"),
    [
        ("bart", ("<bos>", "<eos>")),
        ("gpt", ("<bos>", None)),
        ("roberta", ("<cls>", "<sep>")),
        ("roberta, marks of rows", ("<cls>", "<sep>")),
        ("t5", (None, "<eos>")),
        ("prefix", ("<bos>", None)),
    ],
)
def test_the_tokenizer_puts_the_marks_of_training_around_a_text(name, marks, made, corpus):
    from transformers import AutoTokenizer

    tokenizer, specials = AutoTokenizer.from_pretrained(made[name][1]), corpus.tokenizer.specials
    ids = tokenizer("abc def")["input_ids"]
    before, after = ([specials[mark]] if mark else [] for mark in marks)
    text = ids[len(before) : len(ids) - len(after)]
    assert ids == [*before, *text, *after]
    assert not set(text) & set(specials.values())
    assert set(tokenizer("abc")) == {"input_ids", "attention_mask"}
    pair = tokenizer("abc def", "abc def")["input_ids"]
    assert pair == ([*ids, *text, *after] if after else [*ids, *ids])
    masked = tokenizer("abc <mask> def")["input_ids"]
    assert masked.count(specials["<mask>"]) == 1
    assert (
        tokenizer.decode([token for token in masked if token >= 128]) == "abc def"
    )  # the mask took the space before it


def test_masks_are_filled_with_the_likeliest_tokens_of_the_whole_text(made, corpus):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    run, export = made["roberta"]
    found = fill_mask(export, "abc <mask> defa <mask> gh", top=4)
    assert [len(tokens) for tokens in found] == [4, 4]
    assert fill_mask(run, "abc <mask> defa <mask> gh", top=4) == [
        [(token, pytest.approx(share, abs=1e-5)) for token, share in tokens] for tokens in found
    ]
    tokenizer, model = AutoTokenizer.from_pretrained(export), AutoModelForMaskedLM.from_pretrained(export).eval()
    given = tokenizer("abc <mask> defa <mask> gh", return_tensors="pt")
    with torch.no_grad():
        logits = model(**given).logits[0, given["input_ids"][0] == tokenizer.mask_token_id]
    logits[:, :128], logits[:, corpus.tokenizer.vocab_size :] = -torch.inf, -torch.inf
    for tokens, row in zip(found, logits.softmax(1), strict=True):
        shares, ids = row.topk(4)
        assert [share for _, share in tokens] == pytest.approx(shares.tolist(), abs=1e-5)
        assert [token for token, _ in tokens] == [tokenizer.decode([number]) for number in ids.tolist()]
    with pytest.raises(ConfigError, match="has no <mask>"):
        fill_mask(run, "abc")
    with pytest.raises(ConfigError, match="the model has 128 positions"):
        fill_mask(run, "abc " * 200 + "<mask>")
    with pytest.raises(ConfigError, match="holds a t5, which is not an encoder"):
        fill_mask(made["t5"][0], "<mask>")
    with pytest.raises(ConfigError, match="holds a roberta, an encoder, which writes no text; use `fill-mask`"):
        generate(run, "abc", Sampling())


@pytest.mark.parametrize("name", ["bart", "gpt", "gpt2, relative", "prefix", "t5", "t5 1.1", "t5, tied stacks"])
def test_the_seed_decides_what_a_run_and_its_export_generate(name, made):
    run, export = made[name]
    texts = [generate(path, "abc", Sampling(tokens=12, seed=seed)) for path, seed in ((run, 1), (export, 1), (run, 2))]
    assert texts[0] == texts[1] != texts[2]
    assert not re.search("<[a-z_0-9]+>", "".join(texts))
    if name != "bart":  # which writes the whole text anew
        assert all(text.startswith("abc") for text in texts)


def test_sentinels_of_a_prompt_are_replaced_by_what_the_model_puts_there(made, monkeypatch):
    run, _ = made["t5"]
    trained = load_trained(run)
    seen = {}

    def answer(given, **options):
        seen.update(given=given[0].tolist(), suppressed=set(options["suppress_tokens"]))
        return torch.tensor([[0, 7, 300, 301, 8, 9, 302, 2]])  # <extra_id_0> a b <extra_id_1> <extra_id_2> c <eos>

    monkeypatch.setattr(trained.model, "generate", answer)
    monkeypatch.setattr("trainers.inference.model_export.load_trained", lambda path: trained)
    text = generate(run, "abc <extra_id_0> def <extra_id_1> gh", Sampling())
    assert [token for token in seen["given"] if token < 128] == [7, 8, 2]
    assert seen["given"][-1] == 2
    assert not {2, 7, 106} & seen["suppressed"]
    assert {0, 1, 3, 107, 127} <= seen["suppressed"]
    encoder = Encoder.load(str(trained.tokenizer))
    ids = seen["given"]
    expected = [*ids[: ids.index(7)], 300, 301, *ids[ids.index(7) + 1 : ids.index(8)], *ids[ids.index(8) + 1 : -1]]
    assert text == encoder.decode(expected)


def test_a_prompt_with_a_prefix_is_seen_in_both_directions(made):
    run, _ = made["prefix"]
    trained = load_trained(run)
    text = generate(run, "abc def gh", Sampling(tokens=1, temperature=0.0))
    from trainers.inference.prompt import framed, read_prompt

    encoder = Encoder.load(str(trained.tokenizer))
    ids = framed(read_prompt("abc def gh", encoder, ()), trained.config.objective.text_frame("decoder"), encoder)
    mask = torch.ones(1, 1, len(ids), len(ids), dtype=torch.bool)
    architecture = MODELS[trained.config.model.architecture]
    with torch.no_grad():
        states = architecture.hidden(trained.model, Inputs(torch.tensor([ids]), torch.arange(len(ids))[None], mask))
        logits = architecture.logits(trained.model, states)[0, -1].numpy()
    logits[:2], logits[3:128], logits[encoder.vocab_size :] = -np.inf, -np.inf, -np.inf
    likeliest = int(logits.argmax())
    assert text == encoder.decode([*ids[1:], *([] if likeliest == 2 else [likeliest])])


@pytest.mark.parametrize(
    ("prompt", "mode", "gaps", "prefix"),
    [
        ("abc def", 112, 0, True),
        ("abc <extra_id_0> def", 111, 1, False),
        ("<reserved_2>abc <extra_id_0> def", 113, 1, False),
        ("<reserved_2>abc", 113, 1, False),
        ("<reserved_1>abc def", 112, 0, True),
    ],
)
@pytest.mark.parametrize("name", ["mixture", "mixture, one stack"])
def test_a_mixtures_model_reads_a_prompt_as_the_part_that_it_is_for(
    name, prompt, mode, gaps, prefix, made, monkeypatch
):
    run, _ = made[name]
    trained, seen = load_trained(run), {}

    def answer(given, **options):
        seen.update(options, given=given[0].tolist())
        return torch.cat([given[0] if name.endswith("stack") else given[0, :1], torch.tensor([300, 2])])[None]

    monkeypatch.setattr(trained.model, "generate", answer)
    monkeypatch.setattr("trainers.inference.model_export.load_trained", lambda path: trained)
    text = generate(run, prompt, Sampling())
    assert text.startswith("abc")
    assert "<" not in text
    one_stack = name.endswith("stack")
    ends = [2] if gaps or not one_stack else []  # <eos>: the end of an input whose target is apart
    assert [token for token in seen["given"] if token < 128] == [1] * one_stack + [mode] + [7] * gaps + ends
    assert seen["given"][one_stack] == mode
    assert ("past_key_values" in seen) == (prefix and one_stack)
    assert (7 in seen["suppress_tokens"]) == (not gaps)


@dataclass(frozen=True)
class Backwards(Causal):
    """An objective with its own prompt format: `<sep>` marks the gap, and the answer is read backwards."""

    @property
    def prompt_format(self):
        return PromptFormat(("<sep>",), "<sep>", closed=True, generated=("<cls>",), answer=self.read)

    @staticmethod
    def read(text, generated, specials):
        return [*text[: text.index(specials["<sep>"])], *(token for token in reversed(generated) if token >= 128)]


def test_an_objective_alone_decides_what_a_prompt_looks_like(made, monkeypatch):
    run, _ = made["gpt"]
    trained, seen = load_trained(run), {}
    trained = replace(trained, config=replace(trained.config, objective=Backwards()))

    def answer(given, **options):
        seen.update(options, given=given[0].tolist())
        return torch.cat([given[0], torch.tensor([300, 5, 301, 2])])[None]

    monkeypatch.setattr(trained.model, "generate", answer)
    monkeypatch.setattr("trainers.inference.model_export.load_trained", lambda path: trained)
    encoder = Encoder.load(str(trained.tokenizer))
    specials = encoder.specials
    text = generate(run, "abc", Sampling())
    ends = [specials[name] for name in ("<bos>", "<sep>", "<eos>")]
    assert [token for token in seen["given"] if token < 128] == ends
    assert specials["<cls>"] not in seen["suppress_tokens"]
    assert {specials["<sep>"], specials["<mask>"]} <= set(seen["suppress_tokens"])
    assert text == encoder.decode([*seen["given"][1:-2], 301, 300])
