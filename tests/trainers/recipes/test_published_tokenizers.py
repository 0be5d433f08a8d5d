"""Recipes with tokenizers of the published sizes and special tokens: every recipe resolves, and at least one
of each architecture trains and exports.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gristmill.errors import ConfigError, UserError
from gristmill.events import read_events
from tests.trainers.conftest import build_corpus
from tokenizer.vocabulary.add_reserved import add_reserved
from tokenizer.vocabulary.definition import characters_of_bytes, read_definition
from tokenizer.vocabulary.specials import REQUIRED_BY, SPECIALS
from trainers.config.job import BatchSize, Checkpoints, Execution, Schedule, TrainingBudget
from trainers.config.pretraining import Validation
from trainers.data.packed_corpus import corpus_of
from trainers.objectives import OBJECTIVES
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.recipes import RECIPES
from trainers.runs.resolve import resolve

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("alone")]

_MODERN = {"[UNK]": 50280, "[CLS]": 50281, "[SEP]": 50282, "[PAD]": 50283, "[MASK]": 50284}
_LLAMA_3 = ["<|begin_of_text|>", "<|end_of_text|>", *(f"<|reserved_special_token_{n}|>" for n in range(254))]
# Tokenizer: (ids, special tokens).
PUBLISHED = {
    "alephbert": (52000, {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}),
    "albert": (30000, {"<pad>": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4}),
    "bart": (50265, {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 50264}),
    "bert, cased": (28996, {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}),
    "bert": (30522, {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}),
    "bertweet": (64001, {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 64000}),
    "camembert": (32005, {"<pad>": 1, "<unk>": 3, "<s>": 5, "</s>": 6, "<mask>": 32004}),
    "deberta": (128001, {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 128000}),
    "deberta, version 1": (50265, {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": 50264}),
    "gpt": (40478, {"<unk>": 0}),
    "gpt2": (50257, {"<|endoftext|>": 50256}),
    "llama": (32000, {"<unk>": 0, "<s>": 1, "</s>": 2}),
    "llama 3": (128256, {token: 128000 + number for number, token in enumerate(_LLAMA_3)}),
    "mbert": (119547, {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}),
    "modernbert": (50368, {"<|endoftext|>": 0, "<|padding|>": 1, **_MODERN}),
    "mt5": (250100, {"<pad>": 0, "</s>": 1, "<unk>": 2, **{f"<extra_id_{n}>": 250099 - n for n in range(100)}}),
    "roberta": (50265, {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 50264}),
    "scibert": (31090, {"[PAD]": 0, "[UNK]": 101, "[CLS]": 102, "[SEP]": 103, "[MASK]": 104}),
    "xlmr": (250002, {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 250001}),
    "xlnet": (32000, {"<unk>": 0, "<s>": 1, "</s>": 2, "<cls>": 3, "<sep>": 4, "<pad>": 5, "<mask>": 6}),
    "t5": (32100, {"<pad>": 0, "</s>": 1, "<unk>": 2, **{f"<extra_id_{n}>": 32099 - n for n in range(100)}}),
}
OF_RECIPE = {
    "alephbert_base": "alephbert",
    "albert_base": "albert",
    "albert_large": "albert",
    "albert_xlarge": "albert",
    "albert_xxlarge": "albert",
    "bart_base": "bart",
    "bart_large": "bart",
    "bert_base": "bert",
    "bert_large": "bert",
    "bertweet_base": "bertweet",
    "camembert_base": "camembert",
    "deberta_base": "deberta, version 1",
    "deberta_large": "deberta, version 1",
    "deberta_v2_xlarge": "deberta",
    "deberta_v3_base": "deberta",
    "electra_base": "bert",
    "electra_large": "bert",
    "electra_small": "bert",
    "gpt": "gpt",
    "gpt2_large": "gpt2",
    "gpt2_medium": "gpt2",
    "gpt2_small": "gpt2",
    "gpt2_xl": "gpt2",
    "gpt3": "gpt2",
    "gpt3_13b": "gpt2",
    "gpt3_2_7b": "gpt2",
    "gpt3_6_7b": "gpt2",
    "gpt3_large": "gpt2",
    "gpt3_medium": "gpt2",
    "gpt3_small": "gpt2",
    "gpt3_xl": "gpt2",
    "llama_160m": "llama",
    "llama_1b": "llama",
    "mbert_base": "mbert",
    "modernbert_base": "modernbert",
    "mt5_base": "mt5",
    "mt5_small": "mt5",
    "prefix_lm_base": "t5",
    "roberta_base": "roberta",
    "roberta_large": "roberta",
    "scibert_base": "scibert",
    "spanbert_large": "bert, cased",
    "t5_11b": "t5",
    "t5_3b": "t5",
    "t5_base": "t5",
    "t5_large": "t5",
    "t5_small": "t5",
    "t5_v1_1_base": "t5",
    "xlmr_base": "xlmr",
    "xlnet_base": "xlnet",
    "xlnet_large": "xlnet",
}
TRAINED = [
    "albert_base",
    "bart_base",
    "bert_base",
    "electra_base",
    "electra_small",
    "gpt",
    "gpt2_small",
    "llama_1b",
    "modernbert_base",
    "prefix_lm_base",
    "roberta_base",
    "spanbert_large",
]
TRAINED += ["camembert_base", "t5_v1_1_base", "deberta_base", "deberta_v2_xlarge", "xlnet_large"]


def written(size: int, specials: dict[str, int]) -> bytes:
    """Return a byte-level tokenizer.json with `size` ids and no merges. Ids that neither bytes nor special
    tokens need are unused tokens.
    """
    taken = set(specials.values())
    free = [number for number in range(size) if number not in taken]
    vocabulary = dict(zip(characters_of_bytes(), free, strict=False))
    vocabulary |= {f"unused{number}": number for number in free[256:]} | specials
    added = [{"id": n, "content": token, "special": True, "normalized": False, "lstrip": False, "rstrip": False,
              "single_word": False} for token, n in sorted(specials.items(), key=lambda item: item[1])]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    parts = {"normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts, "model": model}
    return json.dumps(whole).encode()


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    made: dict[str, Path] = {}

    def make(name: str, content: bytes | None = None) -> str:
        if name not in made:
            content = content or written(*PUBLISHED[name])
            made[name] = build_corpus(tmp_path_factory.mktemp("corpus"), tokenizer=content, spans=True, pairs=True)
        return str(made[name])

    return make


def narrow(recipe, directory, **model):
    """Return a recipe at toy width for two steps, with its own vocabulary, objective and packing."""
    config = RECIPES[recipe]() if isinstance(recipe, str) else recipe
    sizes = {"layers": 2, "width": 16, "heads": 2, "positions": 64, "key_value_heads": None, "dropout": 0.0}
    own = {"head_width": None, "feed_forward": None, "decoder_layers": None}
    if config.model.embedding_size is not None:
        own["embedding_size"] = 8
    if config.model.generator_size is not None:
        own["generator_size"] = 0.5 if config.model.embedding_size else 1.0
    if config.model.generator_layers is not None:
        own["generator_layers"] = 1
    config = replace(
        config,
        model=replace(config.model, **{**sizes, **own, **model}),
        data=replace(config.data, corpora=(directory,), sequence_length=48, phases=()),
        batch=BatchSize(sequences=4),
        budget=TrainingBudget(steps=2),
        schedule=Schedule(warmup_steps=1),
        validation=Validation(every=2, tokens=64),
        checkpoints=Checkpoints(every=2, keep=1),
        execution=Execution(zero_stage=1, micro_batch=4),
        precision="fp32",
        log_every=1,
    )
    return resolve(config, corpus_of(config))


def trained(config, run):
    from trainers.runs.run import open_run
    from trainers.training.loop import train

    corpus = corpus_of(config)
    open_run(run, config, corpus)
    train(config, corpus, run, None)
    return run / "export"


def test_every_recipe_of_a_published_vocabulary_is_here():
    assert set(OF_RECIPE) == {name for name, recipe in RECIPES.items() if recipe().model.vocab_size is not None}
    assert {RECIPES[name]().model.architecture for name in TRAINED} == {
        RECIPES[name]().model.architecture for name in OF_RECIPE
    }


@pytest.mark.long
@pytest.mark.parametrize("recipe", OF_RECIPE)
def test_a_recipe_resolves_with_the_published_tokenizer_of_its_model(recipe, corpora):
    name = OF_RECIPE[recipe]
    config = narrow(recipe, corpora(name))
    size = PUBLISHED[name][0]
    expected = {"t5": 32128, "mt5": 250112, "deberta": 128100}.get(name, size)
    assert config.model.vocab_size == RECIPES[recipe]().model.vocab_size == expected


@pytest.mark.deepspeed
@pytest.mark.parametrize("recipe", TRAINED)
def test_a_recipe_trains_and_exports_with_the_published_tokenizer_of_its_model(recipe, corpora, tmp_path):
    import transformers

    from trainers.inference.model_export import load_trained

    name = OF_RECIPE[recipe]
    export = trained(narrow(recipe, corpora(name)), tmp_path / "run")
    losses = [entry["loss"] for entry in read_events(tmp_path / "run" / "log.jsonl", "step")]
    assert len(losses) == 2
    assert all(0 < loss < 40 for loss in losses)
    kind = json.loads((export / "config.json").read_text())["architectures"][0]
    plain = getattr(transformers, kind).from_pretrained(export).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    assert len(tokenizer) == PUBLISHED[name][0]
    ids = torch.tensor([tokenizer("abc def")["input_ids"]])
    more = {"decoder_input_ids": ids} if name in ("t5", "bart") and recipe != "prefix_lm_base" else {}
    ours = load_trained(tmp_path / "run").model
    with torch.no_grad():
        mine, theirs = (network(input_ids=ids, **more)[0] for network in (ours, plain))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)  # GELU rounds differently in one operation


@pytest.mark.long
def test_llama_3s_vocabulary_of_128256_trains(corpora):
    config = narrow("llama_1b", corpora("llama 3"), vocab_size=128256)
    corpus = corpus_of(config)
    assert (corpus.tokenizer.specials["<bos>"], corpus.tokenizer.specials["<eos>"]) == (128000, 128001)


@pytest.mark.long
def test_only_missing_tokens_of_an_objective_are_added(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(written(*PUBLISHED["gpt2"]))
    (tmp_path / "more.json").write_bytes(add_reserved(read_definition(str(path)), ["fill_in_the_middle"]))
    more = read_definition(str(tmp_path / "more.json"))
    assert more.vocab_size == 50260
    added = {"<fim_prefix>": 50257, "<fim_middle>": 50258, "<fim_suffix>": 50259}
    assert added == {name: number for name, number in more.roles.items() if number > 50256}
    assert add_reserved(more, ["causal", "fill_in_the_middle"]) == add_reserved(more, [])
    (tmp_path / "all.json").write_bytes(add_reserved(more, ["all"]))
    assert set(SPECIALS) <= set(read_definition(str(tmp_path / "all.json")).roles)
    with pytest.raises(
        ValueError, match=r"got 'fill_in_the_midle'; did you mean 'fill_in_the_middle'\? allowed causal"
    ):
        add_reserved(more, ["fill_in_the_midle"])


@pytest.mark.long
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_an_objective_needs_no_more_than_is_added_for_it(kind, corpora, tmp_path):
    """For a tokenizer without special tokens, `add_reserved: [kind]` adds all that a model trained with the
    objective needs.
    """
    path = tmp_path / "tokenizer.json"
    path.write_bytes(written(400, {}))
    content = add_reserved(read_definition(str(path)), [kind])
    tiny = (make() for name, make in RECIPES.items() if "tiny" in name)
    recipe = next((config for config in tiny if config.objective.kind == kind), RECIPES["tiny_prefix_lm"]())
    corpus = corpora(f"nothing but {kind}", content)
    config = narrow(replace(recipe, objective=OBJECTIVES[kind]()), corpus)
    needed = set(REQUIRED_BY[kind])
    assert set(corpus_of(config).tokenizer.specials) >= needed
    assert config.model.vocab_size == -(-(400 + len(needed)) // 64) * 64
    without = corpora("nothing", written(400, {}))
    with pytest.raises(UserError, match="add_reserved"):
        narrow(replace(recipe, objective=OBJECTIVES[kind]()), without)


@pytest.mark.long
def test_an_unknown_token_parts_documents_of_no_objective_that_reads_them_back(corpora):
    config = narrow("gpt", corpora("gpt"))
    assert corpus_of(config).tokenizer.specials["<bos>"] == 0
    with pytest.raises(ConfigError, match="the tokenizer begins documents with <unk>, which text may contain too"):
        narrow(replace(RECIPES["gpt"](), objective=FillInTheMiddle()), corpora("gpt"))


@pytest.mark.deepspeed
@pytest.mark.parametrize("specials", [{"[PAD]": 2, "[CLS]": 0, "[SEP]": 1, "[MASK]": 3}, {"<|endoftext|>": 399}])
def test_roberta_takes_padding_of_any_id(specials, corpora, tmp_path):
    """One row is full, so that the last position is read, and the other is padded. Plain `transformers` gives
    the same logits at all tokens but padding.
    """
    import transformers

    from trainers.inference.model_export import load_trained

    path = tmp_path / "tokenizer.json"
    path.write_bytes(written(400, specials))
    content = add_reserved(read_definition(str(path)), ["masked"])
    config = narrow("tiny_roberta", corpora(f"roberta {sorted(specials)}", content), positions=48)
    export = trained(config, tmp_path / "run")
    plain = transformers.AutoModelForMaskedLM.from_pretrained(export).eval()
    pad = corpus_of(config).tokenizer.specials["<pad>"]
    assert plain.config.pad_token_id == pad > 1
    ids = torch.randint(128, 390, (2, 48), generator=torch.Generator().manual_seed(0))
    ids[:, ::7] = 1 if pad != 1 else 0  # the id of padding in the published models is a token here
    seen = torch.ones_like(ids)
    ids[1, 30:], seen[1, 30:] = pad, 0
    ours = load_trained(tmp_path / "run").model
    assert ours.roberta.embeddings.position_embeddings.num_embeddings == 50
    from trainers.models import MODELS
    from trainers.models.interface import Inputs

    mask = seen.bool()[:, None, None, :].expand(2, 1, 48, 48)
    with torch.no_grad():
        states = MODELS["roberta"].hidden(ours, Inputs(ids, torch.arange(48).expand(2, 48), mask))
        mine, theirs = MODELS["roberta"].logits(ours, states), plain(input_ids=ids, attention_mask=seen).logits
    torch.testing.assert_close(mine[seen.bool()], theirs[seen.bool()], atol=1e-6, rtol=0)


@pytest.mark.long
@pytest.mark.parametrize(("model", "recipe"), [("gpt2", "gpt2_small"), ("bert_uncased", "bert_base")])
def test_the_published_tokenizers_themselves(model, recipe, corpora, tmp_path):
    folder = Path(os.environ.get("GRISTMILL_DATA", "")) / "models" / model
    if not folder.is_dir() or "GRISTMILL_DATA" not in os.environ:
        pytest.skip("set GRISTMILL_DATA to the development data, which holds models/gpt2 and models/bert_uncased")
    content = folder / "tokenizer.json"
    made = content.read_bytes() if content.exists() else _gpt2(folder)
    config = narrow(recipe, corpora(model, made))
    assert config.model.vocab_size == {"gpt2": 50257, "bert_uncased": 30522}[model]


def _gpt2(folder: Path) -> bytes:
    from tokenizers import AddedToken, ByteLevelBPETokenizer

    made = ByteLevelBPETokenizer(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    made.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return made.to_str().encode()
