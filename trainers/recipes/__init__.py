"""Recipes: functions that return a configuration; one derives from another with `dataclasses.replace`.

To add a recipe, write a function in the file of its family and add it to `_ALL`.
"""

from collections.abc import Callable

from trainers.config.pretraining import Pretraining
from trainers.recipes import decoders, encoder_decoders, encoders, nanogpt, recurrent, tiny_encoders
from trainers.recipes.decoders import demo_decoder, gpt2_small, llama_tiny

__all__ = ["RECIPES", "demo_decoder", "gpt2_small", "llama_tiny"]

_ALL: tuple[Callable[[], Pretraining], ...] = (
    *(decoders.demo_decoder, decoders.gpt, decoders.gpt2_small, decoders.gpt2_medium, decoders.gpt2_large),
    *(decoders.gpt2_xl, decoders.gpt3, decoders.llama_160m, decoders.llama_1b),
    *(decoders.llama_tiny, decoders.tiny_gpt, decoders.tiny_gpt2),
    *(nanogpt.nanogpt_cpu, nanogpt.nanogpt_gpu),
    *(recurrent.awd_lstm, recurrent.tiny_awd_lstm, recurrent.elmo, recurrent.tiny_elmo),
    *(encoders.bert_base, encoders.bert_large, encoders.roberta_base, encoders.roberta_large),
    *(encoders.albert_base, encoders.albert_large, encoders.albert_xlarge, encoders.albert_xxlarge),
    *(encoders.spanbert_large, encoders.deberta_v2_xlarge, encoders.deberta_v3_base, encoders.xlnet_large),
    *(encoders.modernbert_base, encoders.electra_small, encoders.electra_base),
    *(tiny_encoders.tiny_bert, tiny_encoders.tiny_roberta, tiny_encoders.tiny_modernbert, tiny_encoders.tiny_electra),
    *(
        tiny_encoders.tiny_albert,
        tiny_encoders.tiny_spanbert,
        tiny_encoders.tiny_deberta,
        tiny_encoders.tiny_deberta_v3,
        tiny_encoders.tiny_xlnet,
        tiny_encoders.tiny_simcse,
    ),
    *(encoder_decoders.t5_small, encoder_decoders.t5_base, encoder_decoders.t5_large, encoder_decoders.t5_3b),
    *(encoder_decoders.t5_11b, encoder_decoders.t5_v1_1_base, encoder_decoders.byt5_small),
    *(encoder_decoders.bart_base, encoder_decoders.bart_large, encoder_decoders.prefix_lm_base),
    *(encoder_decoders.tiny_t5, encoder_decoders.tiny_t5_v1_1, encoder_decoders.tiny_t5_shared),
    *(encoder_decoders.tiny_bart, encoder_decoders.tiny_prefix_lm),
)
RECIPES: dict[str, Callable[[], Pretraining]] = {recipe.__name__: recipe for recipe in _ALL}
