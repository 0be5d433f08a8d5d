"""DeBERTaV3: embeddings that two networks share without conflicting gradients, and the detection head."""

import math
from dataclasses import replace

import pytest
import torch

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from tests.trainers.models.test_models import tiny
from tests.trainers.objectives.test_masked import CONTEXT, SPECIALS, VOCABULARY
from tests.trainers.objectives.test_replaced_tokens import texts
from trainers.config.pretraining import Pretraining
from trainers.engine.forward import Forward, tensors
from trainers.engine.hardware.mfu import flops_of
from trainers.engine.losses import MEASURES, losses_of
from trainers.models import build_model, language_model, stock_parts
from trainers.models.encoders.disentangled.disentangled_embedding import merge_embeddings
from trainers.objectives.replaced_tokens import ReplacedTokens
from trainers.recipes import RECIPES
from trainers.rows.batch import PADDING

OBJECTIVE = ReplacedTokens(mask_share=1.0)
MODEL = tiny(
    "deberta_v2",
    layers=3,
    positions=256,
    vocab_size=VOCABULARY,
    position_buckets=16,
    generator_size=1.0,
    generator_layers=2,
    mask_decoder=True,
    initializer_range=0.2,
)
WORDS = "deberta.embeddings.word_embeddings"


def network(model=MODEL):
    made = build_model(model, SPECIALS, 0).eval()
    if model.embedding_sharing != "shared":
        noise = torch.Generator().manual_seed(1)
        with torch.no_grad():
            table = made.get_parameter(f"{WORDS}.delta.weight")
            assert not table.any()  # both networks begin with the same embeddings
            table.copy_(0.3 * torch.randn(table.shape, generator=noise))
    return made


def losses(model):
    made = OBJECTIVE.apply(texts([60, 25], 2), CONTEXT)
    return made, Forward(model, "deberta_v2", True, losses_of(OBJECTIVE.losses))(**tensors(made, "cpu"))


def gradients(model, name):
    model.zero_grad(set_to_none=True)
    losses(model)[1][name].sum().backward()
    return {key for key, each in model.named_parameters() if each.grad is not None and each.grad.any()}


def test_each_loss_trains_the_table_of_its_own_network():
    model = network()
    told, generated = gradients(model, "discriminator_loss"), gradients(model, "loss")
    assert f"{WORDS}.delta.weight" in told
    assert f"{WORDS}.base.weight" in generated
    assert not told & generated
    assert told | generated == {name for name, _ in model.named_parameters()}
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_shared_embeddings_are_trained_by_both():
    model = network(replace(MODEL, embedding_sharing="shared"))
    assert gradients(model, "discriminator_loss") & gradients(model, "loss") == {f"{WORDS}.weight"}


def test_the_discriminator_reads_the_sum_of_both_tables_and_tells_by_the_first_state():
    """The embeddings follow equation 7 of the paper, and the head follows the authors' code. Each document is
    checked on its own.
    """
    model = network()
    batch = texts([60, 25], 2)
    made = OBJECTIVE.apply(batch, CONTEXT)
    forward = Forward(model, "deberta_v2", True, losses_of(OBJECTIVE.losses), [MEASURES["replaced_share"]])
    read = {}
    model.deberta.embeddings.register_forward_hook(lambda module, given, kept, out: read.update(kept), with_kwargs=True)
    with torch.no_grad():
        found = forward(**tensors(made, "cpu"))["discriminator_loss"]
        alone = stock_parts(model, MODEL)[""]
        expected = model.state_dict()[f"{WORDS}.base.weight"] + model.state_dict()[f"{WORDS}.delta.weight"]
        assert torch.equal(alone.deberta.embeddings.word_embeddings.weight, expected)
        assert {key: each.shape for key, each in merge_embeddings(model.state_dict()).items()
                if not key.startswith("generator.")} == {key: each.shape for key, each in alone.state_dict().items()}  # fmt: skip
        head, checked = alone.mask_predictions, 0
        for row in range(2):
            for segment in range(2):
                here = torch.from_numpy(made.segments[row] == segment)
                ids, original = read["input_ids"][row, here], torch.from_numpy(batch.inputs[row])[here]
                states = alone.deberta(ids[None]).last_hidden_state[0]
                for place, state in enumerate(states):
                    inner = head.dense(head.norm(states[0] + state))
                    logit = float(head.output(torch.nn.functional.gelu(inner)))
                    replaced = bool(ids[place] != original[place])
                    nats = math.log1p(math.exp(-logit if replaced else logit))
                    assert found[row, here][place].item() == pytest.approx(nats, abs=1e-4)
                    checked += replaced
    assert checked > 10
    assert not found[torch.from_numpy(made.segments == PADDING)].any()


def test_the_generator_is_half_as_deep_and_its_operations_count():
    model = network()
    generator, sizes = language_model(model, MODEL)
    assert (sizes.layers, sizes.width, sizes.mask_decoder) == (2, 32, True)
    assert len(generator.deberta.encoder.layer) == 2
    assert not hasattr(model.deberta.embeddings.position_embeddings, "weight")
    both = flops_of(model, MODEL, 50)
    smaller = flops_of(generator, sizes, 50)
    head = 32 * 32 + 32 + 2 * 32 + 32 + 1
    larger = replace(MODEL, generator_size=None, generator_layers=None, mask_decoder=False)
    prediction = 32 * 32 + 3 * 32 + VOCABULARY
    assert both.read == smaller.read + flops_of(build_model(larger, SPECIALS, 0), larger, 50).read + 6 * (
        head - prediction
    )
    assert both.predicted == smaller.predicted


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ("model.generator_size=0.5",),
            "generator_size: got 0.5, allowed 1 in deberta_v2, whose generator has embeddings",
        ),
        (("model.generator_layers=3",), r"generator_layers: got 3, allowed 1 to layers \(2\)"),
        (("model.generator_size=null",), "generator_layers: got 1 without generator_size"),
        (("model.embedding_sharing=none",), "embedding_sharing: got 'none', expected"),
        (
            ("model.generator_size=null", "model.generator_layers=null"),
            "model.generator_size: got null with objective replaced_tokens; set the generator's share",
        ),
    ],
)
def test_what_a_generator_of_deberta_cannot_be_is_refused(changes, message):
    data = override(plain(RECIPES["tiny_deberta_v3"]()), list(changes))
    with pytest.raises(ConfigError, match=message):
        parse(Pretraining, data, "x.yaml")


def test_an_electra_takes_a_shallower_generator_but_no_table_of_its_own():
    data = plain(RECIPES["tiny_electra"]())
    config = parse(Pretraining, override(data, ["model.generator_layers=1"]), "x.yaml")
    assert config.model.generator_layers == 1
    with pytest.raises(
        ConfigError, match=r"embedding_sharing: got shared, electra has none; .* or use one of deberta_v2"
    ):
        parse(Pretraining, override(data, ["model.embedding_sharing=shared"]), "x.yaml")
