"""Tiny models of every architecture that is not recurrent, and packed rows with virtual tokens for them."""

from functools import cache

import numpy as np
import torch

from tests.trainers.fresh_networks import Template
from tests.trainers.models.test_models import wide
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import ARCHITECTURES
from trainers.engine.forward import attention_mask
from trainers.models import MODELS, build_model
from trainers.models.interface import Inputs

_SIZES = {"layers": 2, "positions": 64}
_OWN = {
    "albert": {"embedding_size": 16},
    "deberta_v2": {"position_buckets": 8, "convolution": True},
    "electra": {"embedding_size": 16},
    "llama": {"key_value_heads": 2},
}
SIZES = {
    name: wide(name, **_SIZES, **_OWN.get(name, {})) for name, traits in ARCHITECTURES.items() if not traits.recurrent
}
ROWS = 200  # of the embedding tables


@cache
def _base(architecture):
    return Template(build_model(SIZES[architecture], SPECIAL_IDS, 0).eval())


def base(architecture):
    network = _base(architecture).copy()
    torch.default_generator.manual_seed(1)
    network.task_head = torch.nn.Linear(32, 3)
    return network


def family(architecture):
    return SIZES[architecture].family


def applied(architecture, method, seed=0):
    network = base(architecture)
    method.apply(network, architecture, family(architecture), seed, encode=lambda text: [150, 151, 152])
    return network


def row(texts, method, first):
    """Return (ids, positions, segments), each [1, length], of documents packed into one row. Virtual tokens,
    the first with id `first`, precede each document, and positions start after the prefix, if there is one.
    """
    virtual = np.arange(first, first + method.virtual_tokens)
    documents = [np.concatenate([virtual, text]) for text in texts]
    positions = [np.arange(len(each)) + method.prefix_length for each in documents]
    segments = [np.full(len(each), number) for number, each in enumerate(documents)]
    return [torch.from_numpy(np.concatenate(parts)[None]) for parts in (documents, positions, segments)]


def inputs(architecture, method, texts, first=ROWS):
    """Return the inputs of a packed row of these texts. In an encoder-decoder, the decoder reads the texts
    backwards.
    """
    ids, positions, segments = row(texts, method, first)
    if family(architecture) != "encoder_decoder":
        return Inputs(ids, positions, attention_mask(segments, segments, family(architecture) == "decoder"))
    plain = type("Plain", (), {"virtual_tokens": 0, "prefix_length": method.prefix_length})
    its, places, own = row([text[::-1] for text in texts], plain, first)
    decoder = Inputs(its, places, attention_mask(own, own, True))
    cross = attention_mask(own, segments, False)
    return Inputs(ids, positions, attention_mask(segments, segments, False), decoder=decoder, cross=cross)


def states(architecture, network, method, texts, first=ROWS):
    return MODELS[architecture].hidden(network, inputs(architecture, method, texts, first))


def outputs(architecture, network, method, texts, first=ROWS):
    its = states(architecture, network, method, texts, first)
    return torch.cat([MODELS[architecture].logits(network, its), network.task_head(its)], 2)


def perturb(network):
    """Change all trained parameters, so that adapters initialised to have no effect take effect."""
    torch.default_generator.manual_seed(2)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
