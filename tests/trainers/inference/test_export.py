"""Export, evaluation and sampling of a run whose checkpoint is a freshly initialised model."""

import math
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace

from gristmill.errors import ConfigError, ConflictError, UserError
from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.data.packed_corpus import open_corpus
from trainers.evaluation.evaluate import evaluate
from trainers.inference.generate import Sampling, generate
from trainers.inference.model_export import export_checkpoint, load_trained
from trainers.inference.prompt import read_prompt
from trainers.models import build_model
from trainers.recipes import llama_tiny
from trainers.runs import checkpoint
from trainers.runs.resolve import resolve
from trainers.runs.run import fingerprints, open_run


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    recipe = llama_tiny()
    # Longer than every document, so that nothing is cut and each document can be scored alone.
    long = replace(recipe, model=replace(recipe.model, positions=4096))
    long = replace(long, data=replace(recipe.data, sequence_length=4096, corpora=(str(corpus.directory),)))
    config = resolve(long, corpus)
    open_run(path, config, corpus)
    model = build_model(config.model, corpus.tokenizer.specials, seed=3)
    state = ((name, {"weight": tensor.detach().clone()}) for name, tensor in model.named_parameters())
    checkpoint.save(path, 7, 70, fingerprints(config, corpus), state, keep=1)
    return path


@pytest.fixture(scope="module")
def export(run):
    return export_checkpoint(run, run / "export")


def test_transformers_loads_the_export(run, export, corpus):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (kind.from_pretrained(export) for kind in (AutoModelForCausalLM, AutoTokenizer))
    weights = checkpoint.read_weights(checkpoint.newest(run, pytest.fail))
    assert all(torch.equal(parameter, weights[name]) for name, parameter in model.named_parameters())
    assert model.config.use_cache
    specials = corpus.tokenizer.specials
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (1, 2, 0)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)
    assert tokenizer.mask_token_id == specials["<mask>"]
    ids = tokenizer("abc <extra_id_3> def")["input_ids"]
    assert (ids[0], ids.count(specials["<extra_id_3>"])) == (1, 1)
    assert tokenizer.decode(tokenizer("abc def")["input_ids"], skip_special_tokens=True) == "abc def"


@pytest.mark.long
def test_evaluation_is_the_mean_over_documents_scored_alone_by_transformers(export, corpus_directory, corpus):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(export).eval()
    found = evaluate(export, (str(corpus_directory),), tokens=10**6)
    for name, source in corpus.validation.items():
        nats = targets = 0.0
        for number, record in enumerate(source.shards):
            shard = source.shard(number)
            for i in range(record.documents):
                ids = torch.tensor([[1, *shard.tokens[shard.offsets[i] : shard.offsets[i + 1]].tolist(), 2]])
                with torch.no_grad():
                    nats += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
                targets += ids.shape[1] - 1
        measured = found["sources"][name]
        assert measured["tokens"] == targets == source.tokens
        assert measured["loss"] == pytest.approx(nats / targets, abs=1e-4)
        assert measured["bits_per_byte"] == pytest.approx(nats / (math.log(2) * source.text_bytes), abs=1e-4)


@pytest.mark.long
def test_the_unigram_loss_is_that_of_the_training_tokens_shares(export, corpus_directory, corpus):
    """The reference is computed with torch from the tokens of both splits, with an end token for each
    document.
    """
    found = evaluate(export, (str(corpus_directory),), tokens=10**6)
    size = corpus.tokenizer.vocab_size

    def targets(source):
        shards = [source.shard(number) for number in range(len(source.shards))]
        tokens = [torch.from_numpy(shard.tokens.astype("int64")) for shard in shards]
        return torch.cat([*tokens, torch.full((sum(len(shard.doc_ids) for shard in shards),), 2)])

    def expected(read, asked):
        known = torch.bincount(torch.cat([targets(corpus.train[name]) for name in read]), minlength=size) + 1.0
        asked = targets(corpus.validation[asked])
        return float(torch.nn.functional.cross_entropy(known.log().expand(len(asked), -1), asked))

    for name in corpus.validation:
        assert found["sources"][name]["unigram_loss"] == pytest.approx(expected([name], name), abs=1e-5)
    # Of all: the model of all their tokens, on each source as the mixture weighs it.
    weights = {name: load_trained(export).config.data.weights[name] for name in corpus.validation}
    together = sum(weight * expected(corpus.validation, name) for name, weight in weights.items()) / sum(
        weights.values()
    )
    assert found["unigram_loss"] == pytest.approx(together, abs=1e-5)


@pytest.mark.long
def test_a_run_and_its_export_evaluate_alike(run, export):
    assert evaluate(run, tokens=500)["loss"] == pytest.approx(evaluate(export, tokens=500)["loss"], abs=1e-5)


def test_a_model_is_not_evaluated_on_tokens_of_another_tokenizer(export, corpus_directory, tmp_path, monkeypatch):
    other = open_corpus((str(corpus_directory),), None)
    other = replace(other, tokenizer=replace(other.tokenizer, xxh3_128="0" * 32))
    monkeypatch.setattr("trainers.data.packed_corpus.corpus_of", lambda *_: other)
    with pytest.raises(UserError, match="was trained with tokenizer"):
        evaluate(export, (str(corpus_directory),))


def test_exporting_again_does_nothing_and_other_files_are_not_overwritten(run, export, tmp_path):
    before = (export / "model.safetensors").stat().st_mtime_ns
    assert export_checkpoint(run, export) == export
    assert (export / "model.safetensors").stat().st_mtime_ns == before
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(ConflictError, match="holds files that are not an export"):
        export_checkpoint(run, tmp_path)


@pytest.mark.parametrize("path", [".", "..", "model/..", "/"])
def test_an_export_needs_a_name(path):
    with pytest.raises(UserError, match=r"--output: got '.*', expected a path that ends in a name"):
        export_checkpoint(LocalPath("run"), LocalPath(path))


@pytest.mark.long
def test_the_seed_decides_the_sample(run, export):
    texts = [generate(export, "abc", Sampling(tokens=12, seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("abc")
    likeliest = Sampling(tokens=12, temperature=0.0)
    assert generate(run, "abc", likeliest) == generate(export, "abc", replace(likeliest, seed=9))
    wild = generate(export, "", Sampling(tokens=200, temperature=5.0, top_p=1.0))
    assert not [special for special in SPECIAL_IDS if special in wild]


def test_the_space_before_a_mask_is_part_of_its_word_in_a_bpe_of_sentencepiece(tmp_path):
    vocabulary = {"▁": 0, "a": 1, "▁a": 2, "b": 3, "▁b": 4}
    tokenizer = Tokenizer(BPE(vocabulary, [("▁", "a"), ("▁", "b")]))
    tokenizer.pre_tokenizer = Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(["<mask>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read_prompt("a <mask> b", Encoder.load(str(tmp_path)), ["<mask>"]) == [2, 5, 4]


def test_a_prompt_beyond_the_models_positions_is_refused(export):
    with pytest.raises(ConfigError, match="the model has 4096 positions"):
        generate(export, "a b " * 4096, Sampling())
