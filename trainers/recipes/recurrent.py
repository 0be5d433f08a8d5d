"""Recipes of recurrent models: AWD-LSTM as in ULMFiT, ELMo, skip-thoughts, and all of toy size."""

from dataclasses import replace

from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Checkpoints, Execution, Optimizer, Schedule, TrainingBudget
from trainers.config.pretraining import Data, Pretraining, Validation
from trainers.objectives.bidirectional_lm import BidirectionalLM
from trainers.objectives.sentences.skip_thought import SkipThought
from trainers.recipes.decoders import llama_tiny


def awd_lstm() -> Pretraining:
    """ULMFiT's AWD-LSTM (Howard and Ruder, 2018, section 4.1): embeddings of 400, three layers of 1,150; 33,556,078 parameters
    with the 33,278 words of WikiText-2 (Merity et al., 2017, table 2: 33 M). The corpus's tokenizer is used, and bf16.

    Dropout 0.4 after the embeddings and after the last layer, 0.3 between layers, 0.05 of words, 0.5 of recurrent weights; Adam
    with betas 0.7 and 0.99, rows of 70 tokens in batches of 64. Neither the rate (theirs for fine-tuning, 4e-3) nor the length
    of pretraining is given for WikiText-103; ten epochs here. Rows begin with a state of zeros, theirs with the last row's, as
    windows of longer rows do here with `data.bptt=70`.
    """
    return Pretraining(
        name="awd_lstm",
        model=Model(
            "awd_lstm", layers=3, width=400, heads=1, positions=70, feed_forward=1150,
            dropout=0.4, input_dropout=0.4, hidden_dropout=0.3, embedding_dropout=0.05, weight_dropout=0.5,
        ),
        data=Data(sequence_length=70),
        batch=BatchSize(sequences=64),
        budget=TrainingBudget(tokens=1_000_000_000),
        optimizer=Optimizer(learning_rate=4e-3, weight_decay=0.0, betas=(0.7, 0.99)),
        schedule=Schedule(kind="cosine", warmup_steps=1000, final_fraction=0.0),
        precision="bf16",
        validation=Validation(every=5000, tokens=262_144),
        checkpoints=Checkpoints(every=5000, keep=3),
        execution=Execution(zero_stage=1),
    )  # fmt: skip


def tiny_awd_lstm() -> Pretraining:
    """An AWD-LSTM of toy size for tests and first tries: the layers of `awd_lstm` with little dropout, in rows of 64, because a
    step of a recurrent model takes as long as its rows are.
    """
    llama = llama_tiny()
    return replace(
        llama,
        name="tiny_awd_lstm",
        model=Model(
            "awd_lstm", layers=2, width=64, heads=1, positions=128, feed_forward=128,
            dropout=0.1, input_dropout=0.1, hidden_dropout=0.05, embedding_dropout=0.01, weight_dropout=0.1,
        ),
        data=Data(sequence_length=64),
        budget=TrainingBudget(steps=400),
        optimizer=replace(llama.optimizer, learning_rate=1e-2),
    )  # fmt: skip


def elmo() -> Pretraining:
    """ELMo (Peters et al., 2018, section 3.4) over the corpus's tokens: two layers of 4,096 cells in each direction, projected to
    512; 75,563,008 parameters in them, and those of the embeddings, which are the output layer as well.

    Ten epochs of the 768,648,884 words of the 1B Word Benchmark, in batches of 384 times 20 tokens (allenai/bilm-tf,
    bin/train_elmo.py), here 60 rows of 128; dropout 0.1 before every layer and before the output; clipping at 10.

    The published model reads words as characters: `model.character_filters=2048`, at the cost of an output layer that is no
    longer tied.

    Left out: Adagrad at 0.2, in whose place AdamW runs at a rate that is not the paper's; the softmax over 8,192 samples of
    the vocabulary, here over all of it; and state that is carried from row to row.
    """
    return Pretraining(
        name="elmo",
        model=Model("elmo", layers=2, width=1024, heads=1, positions=128, feed_forward=4096, dropout=0.1),
        objective=BidirectionalLM(),
        data=Data(sequence_length=128),
        batch=BatchSize(sequences=60),
        budget=TrainingBudget(tokens=7_686_488_840),
        optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.0, gradient_clipping=10.0),
        schedule=Schedule(kind="cosine", warmup_steps=1000, final_fraction=0.0),
        precision="bf16",
        validation=Validation(every=5000, tokens=262_144),
        checkpoints=Checkpoints(every=5000, keep=3),
        execution=Execution(zero_stage=1),
    )


def tiny_elmo() -> Pretraining:
    """An ELMo of toy size: `llama_tiny` with the layers and the objective of `elmo`, in rows of 64, because a step of a recurrent
    model takes as long as its rows are.
    """
    llama = llama_tiny()
    return replace(
        llama,
        name="tiny_elmo",
        model=Model("elmo", layers=2, width=128, heads=1, positions=128, feed_forward=128, dropout=0.1),
        objective=BidirectionalLM(),
        data=Data(sequence_length=64),
        batch=BatchSize(sequences=32),
        budget=TrainingBudget(steps=150),
        optimizer=replace(llama.optimizer, learning_rate=1e-2),
    )


def tiny_character_elmo() -> Pretraining:
    """An ELMo of toy size that reads tokens as their characters: `tiny_elmo` with 64 filters and one highway layer."""
    elmo = tiny_elmo()
    model = replace(elmo.model, character_filters=64, highway_layers=1)
    return replace(elmo, name="tiny_character_elmo", model=model)


def skip_thought() -> Pretraining:
    """Uni-skip (Kiros et al., 2015, section 3) over the corpus's tokens: a GRU of 2,400 on embeddings of 620, and two decoders.

    Adam, batches of 128 sentences, clipping at 10. The sentences of BookCorpus have 13 words (table 1), so 12 rows, with 170
    tokens of text each, hold as many. The paper trains for two weeks and gives no steps; here one pass over as many words.

    Left out: the learning rate, which the paper does not give either, here Adam's default; the vocabulary of 20,000 words and
    its expansion from word2vec.
    """
    return Pretraining(
        name="skip_thought",
        model=Model("gru", layers=1, width=2400, heads=1, positions=256, embedding_size=620),
        objective=SkipThought(),
        data=Data(sequence_length=256, packing="full_sentences"),
        batch=BatchSize(sequences=12),
        budget=TrainingBudget(tokens=985_000_000),
        optimizer=Optimizer(learning_rate=1e-3, weight_decay=0.0, gradient_clipping=10.0),
        schedule=Schedule(kind="constant", warmup_steps=0),
        precision="bf16",
        validation=Validation(every=5000, tokens=262_144),
        checkpoints=Checkpoints(every=5000, keep=3),
        execution=Execution(zero_stage=1),
    )


def tiny_skip_thought() -> Pretraining:
    """Skip-thoughts of toy size: `llama_tiny` with the layers and the objective of `skip_thought`, in rows of 256."""
    llama = llama_tiny()
    return replace(
        llama,
        name="tiny_skip_thought",
        model=Model("gru", layers=1, width=128, heads=1, positions=256, embedding_size=64),
        objective=SkipThought(),
        data=Data(sequence_length=256, packing="full_sentences"),
        batch=BatchSize(sequences=8),
        budget=TrainingBudget(steps=200),
        optimizer=replace(llama.optimizer, learning_rate=1e-2),
    )
