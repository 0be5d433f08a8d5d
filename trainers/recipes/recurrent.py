"""Recipes for recurrent models: ULMFiT's AWD-LSTM, ELMo and skip-thoughts, each also in toy size."""

from dataclasses import replace

from trainers.config.architecture import Model
from trainers.config.job import BatchSize, Checkpoints, Execution, Optimizer, Schedule, TrainingBudget
from trainers.config.pretraining import Data, Pretraining, Validation
from trainers.objectives.bidirectional_lm import BidirectionalLM
from trainers.objectives.sentences.skip_thought import SkipThought
from trainers.recipes.decoders import llama_tiny


def awd_lstm() -> Pretraining:
    """ULMFiT's AWD-LSTM (Howard and Ruder, 2018, section 4.1): embeddings of 400 and three layers of 1,150,
    1,150 and 400 units, computed in bf16. The vocabulary is that of the corpus's tokenizer. With the 33,278
    words of WikiText-2 the model has 33,556,078 parameters; Merity et al. (2017, table 2) give 33 M.

    Dropout is 0.4 after the embeddings and after the last layer, 0.3 between layers, 0.05 for words and 0.5
    for recurrent weights. The optimizer is Adam with betas 0.7 and 0.99; a batch is 64 rows of 70 tokens. For
    pretraining on WikiText-103, the paper gives neither the learning rate (here 4e-3, its rate for
    fine-tuning) nor the length (here ten epochs).

    Every row begins with a state of zeros, whereas in the paper it begins with the final state of the
    previous row. To carry the state on within a row, use longer rows and `data.bptt=70`: each window of 70
    tokens then begins with the final state of the window before it.
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
    """An AWD-LSTM of toy size for tests and first experiments: two layers with little dropout. Rows have only
    64 tokens, because a recurrent model reads a row one token at a time.
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
    """ELMo (Peters et al., 2018, section 3.4) over the corpus's tokens: two layers of 4,096 cells in each
    direction, projected to 512. The layers have 75,563,008 parameters, not counting the embeddings, which are
    tied to the output layer.

    The model reads ten times as many tokens as the 1B Word Benchmark has words (768,648,884). A batch of 60
    rows of 128 contains as many tokens as the authors' 384 rows of 20 (allenai/bilm-tf, bin/train_elmo.py).
    Dropout is 0.1 before every layer and before the output; clipping is at 10.

    The published model reads words as characters. To do so, set `model.character_filters=2048`; the output
    layer is then no longer tied.

    Left out: Adagrad at 0.2 (here AdamW, at a rate that is not the paper's); the softmax over 8,192 samples
    of the vocabulary (here over the whole vocabulary); and state that is carried from row to row.
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
    """An ELMo of toy size for tests and first experiments, with the objective of `elmo`. Rows have only 64
    tokens, because a recurrent model reads a row one token at a time.
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
    """Uni-skip (Kiros et al., 2015, section 3) over the corpus's tokens: a GRU of width 2,400 on embeddings
    of width 620, and two decoders.

    It is trained with Adam, and gradients are clipped at 10. The paper's batches have 128 sentences, each of
    13 words on average (table 1) or about 16 tokens. Batches of 12 rows, each with room for 170 tokens of
    text, contain about as many tokens.

    The paper gives neither a number of steps nor a learning rate. Here the model reads as many tokens as
    BookCorpus has words, at Adam's default rate of 1e-3. The paper's vocabulary of 20,000 words and its
    expansion from word2vec are left out.
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
    """Skip-thoughts of toy size: a GRU of width 128, trained with the objective of `skip_thought` for 200
    steps.
    """
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
