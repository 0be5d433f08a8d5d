"""Models: `transformers` architectures by name, initialised from a seed. To add one: a file here, a line in MODELS."""

from collections.abc import Callable
from typing import Any

from trainers.config import Model
from trainers.models.bert import bert
from trainers.models.gpt2 import gpt2
from trainers.models.llama import llama

# From a model's sizes and the special ids to the configuration object of `transformers`.
MODELS: dict[str, Callable[[Model, dict[str, int]], Any]] = {"bert": bert, "gpt2": gpt2, "llama": llama}
FAMILY = {"bert": "encoder", "gpt2": "decoder", "llama": "decoder"}
_CLASSES = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder_decoder": "AutoModelForSeq2SeqLM",
}


def build_model(model: Model, specials: dict[str, int], seed: int) -> Any:
    """A freshly initialised `transformers` language model in fp32 that computes attention with sdpa.

    The weights depend on the sizes and the seed alone; the caller's random state is left as it was. `vocab_size`,
    `feed_forward` and `key_value_heads` must be resolved.
    """
    import torch
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = MODELS[model.architecture](model, specials)
        of_family = getattr(transformers, _CLASSES[FAMILY[model.architecture]])
        return of_family.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
