"""Fixtures for evaluation: runs whose checkpoints are random models."""

from dataclasses import replace

import pytest
import torch

from trainers.data.packed_corpus import corpus_of
from trainers.models import build_model
from trainers.recipes import RECIPES
from trainers.runs import checkpoint
from trainers.runs.resolve import resolve
from trainers.runs.run import fingerprints, open_run, read_config


def save_random(path, corpus, step, seed):
    config = read_config(path)
    model = build_model(config.model, corpus.tokenizer.specials, seed=seed)
    noise = torch.Generator().manual_seed(seed)
    state = (
        (key, {"weight": (tensor + 0.1 * torch.randn(tensor.shape, generator=noise)).detach()})
        for key, tensor in model.named_parameters()
    )
    checkpoint.save(path, step, 10 * step, fingerprints(config, corpus), state, keep=9)


@pytest.fixture(scope="session")
def random_run(corpus_directory, tmp_path_factory):
    """A function that makes a run of a recipe with a checkpoint of random weights at each given step."""

    def make(recipe, seed=3, steps=(7,), corpus_directory=corpus_directory, objective=None, positions=None):
        config = RECIPES[recipe]()
        sizes = replace(config.model, positions=positions or config.model.positions)
        config = replace(config, seed=seed, model=sizes, objective=objective or config.objective)
        config = replace(config, data=replace(config.data, corpora=(str(corpus_directory),)))
        corpus = corpus_of(config)
        config = resolve(config, corpus)
        path = tmp_path_factory.mktemp("random") / recipe
        open_run(path, config, corpus)
        for number, step in enumerate(steps):
            save_random(path, corpus, step, seed + 100 * number)
        return path

    return make


@pytest.fixture(scope="session")
def decoder_run(random_run):
    return random_run("llama_tiny")


@pytest.fixture(scope="session")
def other_run(random_run):
    return random_run("tiny_gpt2", seed=8)
