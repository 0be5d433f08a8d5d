"""Recipes: parameter counts and settings against the published ones."""

from dataclasses import replace

import pytest
import torch
import transformers

from tokenizer.kinds import byte_vocabulary
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.config.pretraining import LengthPhase
from trainers.models import build_model
from trainers.objectives.masked import Masked
from trainers.objectives.sentences.next_sentence import NextSentence
from trainers.recipes import RECIPES

COUNTS = {
    "albert_base": 11_813_810,
    "albert_large": 17_847_474,
    "albert_xlarge": 59_021_490,
    "albert_xxlarge": 223_158_450,
    "alephbert_base": 126_030_880,
    "bart_base": 139_420_416,
    "bart_large": 406_291_456,
    "bert_base": 110_106_428,
    "bert_large": 336_226_108,
    "bertweet_base": 134_965_505,
    "camembert_base": 110_655_493,
    "deberta_base": 139_637_337,
    "deberta_large": 406_789_209,
    "deberta_v2_xlarge": 887_871_588,
    "deberta_v3_base": 326_842_213,
    "electra_base": 119_386_427,
    "electra_large": 354_655_291,
    "electra_small": 14_196_219,
    "gpt": 116_534_784,
    "gpt2_large": 774_030_080,
    "gpt2_medium": 354_823_168,
    "gpt2_small": 124_439_808,
    "gpt2_xl": 1_557_611_200,
    "gpt3": 174_604_259_328,
    "gpt3_13b": 12_853_386_240,
    "gpt3_2_7b": 2_651_553_280,
    "gpt3_6_7b": 6_658_404_352,
    "gpt3_large": 760_300_032,
    "gpt3_medium": 355_871_744,
    "gpt3_small": 125_226_240,
    "gpt3_xl": 1_315_723_264,
    "llama_160m": 162_417_408,
    "llama_1b": 1_100_048_384,
    "mbert_base": 178_566_653,
    "modernbert_base": 149_655_232,
    "mt5_base": 582_401_280,
    "mt5_small": 300_176_768,
    "roberta_base": 124_697_433,
    "roberta_large": 355_412_057,
    "scibert_base": 110_543_220,
    "spanbert_large": 336_970_980,
    "t5_11b": 11_307_321_344,
    "t5_3b": 2_851_598_336,
    "t5_base": 222_903_552,
    "t5_large": 737_668_096,
    "t5_small": 60_506_624,
    "t5_v1_1_base": 247_577_856,
    "xlmr_base": 278_295_186,
    "xlnet_base": 116_750_336,
    "xlnet_large": 360_300_800,
}
"""Counts with the published vocabularies. Embeddings that are also the output layer count once, and the counts of
ELECTRA and DeBERTaV3 include both networks.
"""


def parameters(model, part=lambda network: network):
    with torch.device("meta"):
        network = build_model(fill(model, 1), SPECIAL_IDS, 0)
    return sum(parameter.numel() for parameter in part(network).parameters())


@pytest.mark.long
@pytest.mark.parametrize("name", COUNTS)
def test_a_recipe_has_the_published_parameters(name):
    assert parameters(RECIPES[name]().model) == COUNTS[name]


def test_the_recipes_without_a_count_are_those_that_the_page_of_training_files_names():
    """The recipes in `elsewhere` are counted below or in the tests of their architectures, ELMo without its
    vocabulary.
    """
    elsewhere = {"awd_lstm", "byt5_small", "elmo", "skip_thought"}
    large = {name for name in RECIPES if "tiny" not in name and name != "demo_decoder"}
    assert large - set(COUNTS) - elsewhere == {"nanogpt_cpu", "nanogpt_gpu", "prefix_lm_base"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "kind", "sizes"),
    [
        ("alephbert_base", "Bert", {"vocab_size": 52000}),
        ("bertweet_base", "Roberta", {"vocab_size": 64001, "max_position_embeddings": 130, "type_vocab_size": 1}),
        ("camembert_base", "Camembert", {"vocab_size": 32005, "max_position_embeddings": 514, "type_vocab_size": 1}),
        ("mbert_base", "Bert", {"vocab_size": 119547}),
        ("mt5_base", "MT5", {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12}),
        ("mt5_small", "MT5", {}),
        ("scibert_base", "Bert", {"vocab_size": 31090}),
        ("xlmr_base", "XLMRoberta", {"vocab_size": 250002, "max_position_embeddings": 514, "type_vocab_size": 1}),
    ],
)
def test_a_model_of_a_language_or_domain_has_the_parameters_of_its_published_configuration(name, kind, sizes):
    """Parameters are counted in the corresponding class of `transformers`. Its class for mT5 ties the output
    layer, but the published model does not.
    """
    head = (
        "ConditionalGeneration"
        if kind == "MT5"
        else "PreTraining"
        if RECIPES[name]().model.sentence_head
        else "MaskedLM"
    )
    with torch.device("meta"):
        network = getattr(transformers, f"{kind}For{head}")(getattr(transformers, f"{kind}Config")(**sizes))
    output = 0
    if kind == "MT5":
        assert network.lm_head.weight is network.shared.weight
        output = network.lm_head.weight.numel()
    assert parameters(RECIPES[name]().model) == sum(each.numel() for each in network.parameters()) + output


def test_models_of_many_languages_sample_them_by_a_power_of_their_size():
    sampled = {name: RECIPES[name]().data.weights for name in RECIPES if RECIPES[name]().data.weights != "proportional"}
    assert sampled == {
        "mbert_base": "tokens**0.7",
        **dict.fromkeys(("xlmr_base", "mt5_base", "mt5_small"), "temperature"),
    }
    assert RECIPES["camembert_base"]().objective == Masked(unit="words", marks="rows")


def test_alephbert_with_one_token_type_has_the_parameters_of_its_published_configuration():
    """The configuration is models/alephbert-base/config.json of OnlpLab/AlephBERT."""
    with torch.device("meta"):
        network = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=52000, type_vocab_size=1))
    assert parameters(RECIPES["alephbert_base"]().model) == sum(each.numel() for each in network.parameters()) + 768


def test_bert_without_its_heads_and_with_one_has_the_published_parameters():
    base, large = RECIPES["bert_base"]().model, RECIPES["bert_large"]().model
    assert parameters(base, lambda network: network.bert) == 109_482_240
    assert parameters(large, lambda network: network.bert) == 335_141_888
    assert parameters(replace(base, sentence_head=False)) == 109_514_298


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "discriminator", "generator"),
    [
        ("electra_small", 13_549_057, 4_620_026),
        ("electra_base", 109_483_009, 33_740_602),
        ("electra_large", 335_142_913, 51_295_290),
    ],
)
def test_electras_networks_have_the_published_parameters(name, discriminator, generator):
    """The paper gives 14 M, 110 M and 335 M for the discriminators (tables 1 and 2)."""
    model = RECIPES[name]().model
    assert parameters(model, lambda network: network.discriminator()) == discriminator
    assert parameters(model, lambda network: network.generator) == generator
    shared = parameters(model, lambda network: network.electra.embeddings)
    assert parameters(model) == discriminator + generator - shared


def stock_parameters(kind, config):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in kind(config).parameters())


def test_electra_large_has_the_parameters_of_its_published_configurations():
    """The configurations are those of google/electra-large-discriminator and google/electra-large-generator.
    The generator has a quarter of the discriminator's width and the same embedding width.
    """
    sizes = {"vocab_size": 30522, "embedding_size": 1024, "num_hidden_layers": 24}
    wide = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16}
    narrow = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4}
    model = RECIPES["electra_large"]().model
    discriminator, generator = (transformers.ElectraConfig(**sizes, **its) for its in (wide, narrow))
    for part, kind, config in (
        (lambda network: network.discriminator(), transformers.ElectraForPreTraining, discriminator),
        (lambda network: network.generator, transformers.ElectraForMaskedLM, generator),
    ):
        assert parameters(model, part) == stock_parameters(kind, config)


def test_xlnets_have_the_parameters_of_their_published_configurations():
    """The configurations are those of xlnet-base-cased and xlnet-large-cased, with a vocabulary of 32,000
    pieces.
    """
    base = {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072}
    large = {"d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096}
    for recipe, sizes in (("xlnet_base", base), ("xlnet_large", large)):
        published = stock_parameters(transformers.XLNetLMHeadModel, transformers.XLNetConfig(vocab_size=32000, **sizes))
        assert parameters(RECIPES[recipe]().model) == published


def test_an_xlm_of_the_published_size_differs_by_its_language_embeddings_and_the_layer_before_its_output():
    """The configuration is that of xlm-mlm-tlm-xnli15-1024. Conneau et al. (2020, appendix, table of model
    sizes) give 250 M for XLM-15.

    XLM adds an embedding of one of 15 languages to every token, whereas the model of `tiny_translation_lm`
    adds an embedding of the side of the pair. XLM also predicts directly from its states, without BERT's
    dense layer and norm.
    """
    sizes = {"vocab_size": 95000, "emb_dim": 1024, "n_layers": 12, "n_heads": 8, "n_langs": 15}
    published = stock_parameters(transformers.XLMWithLMHeadModel, transformers.XLMConfig(**sizes))
    assert published == pytest.approx(250e6, rel=0.01)
    tiny = RECIPES["tiny_translation_lm"]().model
    ours = replace(tiny, layers=12, width=1024, heads=8, positions=512, vocab_size=95000)
    sides, languages, dense = 2 * 1024, 15 * 1024, 1024 * 1024 + 3 * 1024
    assert parameters(ours) - sides - dense == published - languages


def test_skip_thoughts_have_the_matrices_of_the_papers_equations():
    """Kiros et al. (2015, section 2.1) define W and U for the reset gate, the update gate and the state, and
    also C in the decoders. Embeddings have 620 dimensions, states 2,400, and the vocabulary 20,000 words. The
    biases are our addition: two for each gate, two for the state, and one for the output.
    """
    words, embedding, state = 20_000, 620, 2400
    encoder = 3 * (state * embedding + state * state)
    decoder = encoder + 3 * state * state
    biases = 3 * 2 * 3 * state + words
    model = replace(RECIPES["skip_thought"]().model, vocab_size=words)
    assert parameters(model) == words * (embedding + state) + encoder + 2 * decoder + biases


@pytest.mark.parametrize(
    ("sharing", "narrow", "wide"),
    [
        ({"shared_parts": "all"}, 12, 31),
        ({"shared_parts": "attention"}, 64, 83),
        ({"shared_parts": "feed_forward"}, 38, 57),
        ({"layer_groups": 12}, 89, 108),
    ],
)
def test_what_alberts_layers_share_gives_the_published_parameters(sharing, narrow, wide):
    """Lan et al. (2020, table 4) give the counts in millions, for embedding widths of 128 and 768."""
    model = replace(RECIPES["albert_base"]().model, **sharing)
    counts = [parameters(replace(model, embedding_size=size), lambda network: network.albert) for size in (128, 768)]
    assert [int(count / 1e6) for count in counts] == pytest.approx([narrow, wide], abs=1)
    if sharing in ({"shared_parts": "all"}, {"layer_groups": 12}):
        assert counts[0] == {"shared_parts": 11_683_584, "layer_groups": 89_650_176}[next(iter(sharing))]


@pytest.mark.parametrize(("name", "published"), [("albert_large", 18), ("albert_xlarge", 60)])
def test_the_larger_alberts_have_the_published_parameters(name, published):
    """Lan et al. (2020, table 1) give the counts in millions. Their 235 M for xxlarge do not match the shape
    that they state.
    """
    assert parameters(RECIPES[name]().model, lambda network: network.albert) == pytest.approx(published * 1e6, rel=0.03)


@pytest.mark.parametrize(
    ("layers", "width", "heads", "count"),
    [(3, 768, 12, 45_691_392), (6, 768, 3, 66_955_008), (6, 768, 12, 66_955_008), (12, 1024, 16, 183_987_200)],
)
def test_the_sizes_of_berts_ablation_have_the_published_parameters(layers, width, heads, count):
    model = replace(RECIPES["bert_base"]().model, layers=layers, width=width, heads=heads)
    assert parameters(model, lambda network: network.bert) == count


def test_the_biases_of_bert_base_are_what_bitfit_trains():
    model = RECIPES["bert_base"]().model
    with torch.device("meta"):
        network = build_model(fill(model, 1), SPECIAL_IDS, 0).bert
    biases = sum(parameter.numel() for name, parameter in network.named_parameters() if name.endswith("bias"))
    assert biases == 102_912


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_named_after_its_function_says_what_it_is_and_checks(name):
    config = RECIPES[name]()
    assert config.name == name
    assert len(RECIPES[name].__doc__.splitlines()[0]) > 20
    config.model.check()
    config.check()


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("alephbert_base", (None, None, 1e-4, None)),
        ("bart_large", (8000, 500_000, None, None)),
        ("bert_base", (256, 1_000_000, 1e-4, 10_000)),
        ("bert_large", (256, 1_000_000, 1e-4, 10_000)),
        ("bertweet_base", (7000, 950_000, 4e-4, 47_500)),
        ("byt5_small", (1024, 1_000_000, None, None)),
        ("camembert_base", (8192, 100_000, 7e-4, 10_000)),
        ("electra_base", (256, 766_000, 2e-4, 10_000)),
        ("electra_large", (2048, 1_750_000, 2e-4, 10_000)),
        ("electra_small", (128, 1_000_000, 5e-4, 10_000)),
        ("gpt", (64, None, 2.5e-4, 2000)),
        ("mt5_small", (1024, 1_000_000, None, 10_000)),
        ("roberta_base", (8192, 500_000, 6e-4, 24_000)),
        ("roberta_large", (8192, 500_000, 4e-4, 30_000)),
        ("t5_base", (128, 2**19, None, 10_000)),
        ("xlmr_base", (8192, 1_500_000, None, None)),
    ],
)
def test_a_recipe_trains_as_published(name, published):
    """`published` is (batch size in sequences, steps, peak learning rate, warm-up steps). None is not
    compared.
    """
    config = RECIPES[name]()
    set_ = (config.batch.sequences, config.budget.steps, config.optimizer.learning_rate, config.schedule.warmup_steps)
    assert [here for here, there in zip(set_, published, strict=True) if there is not None] == [
        there for there in published if there is not None
    ]


@pytest.mark.parametrize("name", ["bert_base", "electra_small", "electra_base", "electra_large"])
def test_embeddings_decay_as_in_the_authors_code(name):
    """The authors' code excludes only biases and layer norms from weight decay (google-research/electra,
    model/optimization.py, taken from BERT's).
    """
    optimizer = RECIPES[name]().optimizer
    assert (optimizer.weight_decay, optimizer.decay_embeddings) == (0.01, True)


def test_bert_masks_10_copies_of_pairs_of_128_then_of_512_and_roberta_fresh_full_sentences_that_see_one_another():
    for bert in (RECIPES["bert_base"](), RECIPES["bert_large"]()):
        assert bert.objective == NextSentence(rate=0.15, mask_share=0.8, random_share=0.1, copies=10)
        assert (bert.data.phases, bert.data.sequence_length) == ((LengthPhase(900_000, 128),), 512)
        assert bert.data.packing == "segment_pairs"
    for roberta in (RECIPES["roberta_base"](), RECIPES["roberta_large"]()):
        assert roberta.objective == Masked(rate=0.15, mask_share=0.8, random_share=0.1, copies=None, marks="rows")
        assert (roberta.data.phases, roberta.data.sequence_length) == ((), 512)
        assert (roberta.data.packing, roberta.data.isolation) == ("full_sentences", False)


def test_byt5_has_more_encoder_than_decoder_and_the_vocabulary_of_bytes():
    model = fill(RECIPES["byt5_small"]().model, byte_vocabulary.VOCAB_SIZE)
    assert (model.layers, model.decoder_layers, model.vocab_size) == (12, 4, 384)
    assert parameters(model) == 299_637_760  # the paper's 300 M


def test_an_untied_output_layer_is_one_more_table_of_embeddings():
    model = RECIPES["t5_v1_1_base"]().model
    assert parameters(model) - parameters(replace(model, tied=True)) == model.vocab_size * model.width


def test_tiny_recipes_cover_every_architecture():
    tiny = [RECIPES[name]().model for name in RECIPES if name.startswith("tiny") or name == "llama_tiny"]
    assert {model.architecture for model in tiny} == set(Model.__annotations__["architecture"].__args__)


def test_what_is_not_tiny_is_computed_in_bf16():
    small = {name for name, recipe in RECIPES.items() if recipe().precision == "fp32"}
    assert small == {name for name in RECIPES if "tiny" in name} | {"demo_decoder", "nanogpt_cpu"}
