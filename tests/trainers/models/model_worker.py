"""Worker of test_models_zero: trains every model and objective of MODELS for a few steps under every ZeRO
stage.

Started by `run_workers` as `model_worker.py CORPUS OTHER OUTPUT`, where OTHER has the columns `spans` and
`target`; the first worker writes {name: {stage: [loss of each step]}}.
"""

import json
import sys
from dataclasses import replace

from gristmill.storage.disk import LocalPath
from tests.trainers.engine.zero_worker import corpus_for, pretraining_of, without_dropout
from tests.trainers.fresh_networks import Template
from tests.trainers.launching import pass_over_garbage
from trainers.config.job import BatchSize
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import TrainingData, corpus_of, training_data
from trainers.models import build_model
from trainers.objectives.spans.denoising import Denoising
from trainers.runs.resolve import resolve

STEPS, SEQUENCES, RATE = 3, 6, 5e-3
MODELS = {
    "bert, pairs": ("tiny_bert", {}),
    "awd_lstm": ("tiny_awd_lstm", {}),
    "albert, pairs": ("tiny_albert", {}),
    "albert, shared attention": ("tiny_albert", {"shared_parts": "attention"}),
    "bert, span boundary": ("tiny_spanbert", {}),
    "bert, translation": ("tiny_translation_lm", {}),
    "bart, relative": ("tiny_bart", {"position": "relative"}),
    "canine": ("tiny_canine", {}),
    "canine, characters": ("tiny_canine_c", {}),
    "deberta": ("tiny_deberta", {}),
    "deberta, version 1": ("tiny_deberta_v1", {}),
    "deberta, replaced tokens": ("tiny_deberta_v3", {}),
    "electra": ("tiny_electra", {}),
    "elmo": ("tiny_elmo", {}),
    "elmo, characters": ("tiny_character_elmo", {}),
    "gpt": ("tiny_gpt", {}),
    "gpt2, relative": ("tiny_gpt2", {"position": "relative"}),
    "gru": ("tiny_skip_thought", {}),
    "llama, gap": ("fill_in_the_middle", {}),
    "llama, prefix": ("tiny_prefix_lm", {}),
    "modernbert": ("tiny_modernbert", {}),
    "roberta, copies": ("tiny_simcse", {}),
    "roberta, neighbours": ("tiny_quick_thought", {}),
    "roberta, sinusoids": ("tiny_roberta", {"position": "sinusoidal"}),
    "t5, gap sentences": ("tiny_pegasus", {}),
    "t5, mixture": ("mixture", {}),
    "t5, pairs": ("tiny_multitask", {}),
    "t5, salient spans": ("tiny_salient_spans", {}),
    "t5, tied stacks": ("tiny_t5_shared", {}),
    "t5 1.1": ("tiny_t5_v1_1", {}),
    "xlnet": ("tiny_xlnet", {}),
}


def prepared(name: str, corpora: tuple[str, str]) -> tuple[Pretraining, TrainingData, object]:
    """Return (configuration, data, fresh model) for one of MODELS. The second corpus is used if the first
    lacks a column that the objective needs.
    """
    recipe, sizes = MODELS[name]
    whole = pretraining_of(recipe)
    config = replace(
        whole,
        model=without_dropout(replace(whole.model, **sizes)),
        objective=Denoising(permute_sentences=False) if recipe == "tiny_bart" else whole.objective,
        data=replace(whole.data, corpora=(corpus_for(whole.objective, corpora),)),
        batch=BatchSize(sequences=SEQUENCES),
    )
    opened = corpus_of(config)
    config = resolve(config, opened)
    return config, training_data(opened, config), build_model(config.model, opened.tokenizer.specials, 0)


def main() -> None:
    corpora, output = (sys.argv[1], sys.argv[2]), LocalPath(sys.argv[3])
    from trainers.engine.engine import Engine, hard_exit, start_group
    from trainers.engine.forward import forward_of

    rank, world = start_group()
    size = SEQUENCES // world
    found: dict[str, dict[int, list[float]]] = {}
    for name in MODELS:
        whole, data, model = prepared(name, corpora)
        template = Template(model)
        for stage in range(4):
            config = replace(whole, execution=replace(whole.execution, zero_stage=stage))
            engine = Engine(forward_of(template.copy(), config), config, size, 1)
            losses = []
            for step in range(STEPS):
                batches = list(data.micro_batches(step * SEQUENCES, SEQUENCES, size, rank, world))
                losses.append(engine.train_step(batches, step, RATE, len(data.sources), False)[0].loss)
            engine.close()
            pass_over_garbage()
            found.setdefault(name, {})[stage] = losses
    if rank == 0:
        output.write_text(json.dumps(found))
    hard_exit(0)
