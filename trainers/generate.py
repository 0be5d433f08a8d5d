"""Sampling from a trained model."""

from dataclasses import dataclass
from pathlib import Path

from pipelines.contracts.errors import ConfigError
from trainers.config import require


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: `temperature` 0 takes the likeliest; `top_k` and `top_p` cut the tail, 0 and 1 for not at
    all.
    """

    tokens: int = 100
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    seed: int = 0

    def check(self) -> None:
        """ValueError for a value that is out of range."""
        require(self.tokens >= 1, f"tokens: got {self.tokens}, allowed 1 and more")
        require(self.temperature >= 0, f"temperature: got {self.temperature}, allowed 0 and more")
        require(self.top_k >= 0, f"top_k: got {self.top_k}, allowed 0 (all tokens) and more")
        require(0 < self.top_p <= 1, f"top_p: got {self.top_p}, allowed above 0 to 1")


def generate(path: Path, prompt: str, sampling: Sampling) -> str:
    """The prompt and its continuation by the model of an export or a run; the same seed gives the same text.

    A continuation ends at `<eos>`, after `sampling.tokens` tokens, or at the model's last position.
    """
    import pyarrow as pa
    import torch

    from tokenizer.encode import Encoder
    from trainers.export import load_trained

    sampling.check()
    trained = load_trained(path)
    model, encoder = trained.model, Encoder.load(str(trained.tokenizer), library="tokenizers")
    ids = [encoder.specials["<bos>"], *encoder.encode(pa.array([prompt], pa.large_string()))[0].tolist()]
    positions = model.config.max_position_embeddings
    room = positions - len(ids)
    if room < 1:
        raise ConfigError(f"--prompt: has {len(ids) - 1} tokens, the model has {positions} positions; shorten it")
    eos, unused = encoder.specials["<eos>"], model.config.vocab_size
    sampled = sampling.temperature > 0
    # Every setting is given, because those left out come from the model's generation_config.json.
    choice = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p} if sampled else {}
    torch.manual_seed(sampling.seed)
    with torch.no_grad():
        output = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=min(sampling.tokens, room),
            do_sample=sampled,
            # Reserved ids, and those that only fill up the vocabulary, stand for no text.
            suppress_tokens=[*(set(encoder.specials.values()) - {eos}), *range(encoder.vocab_size, unused)],
            **choice,
        )
    return encoder.decode([token for token in output[0, 1:].tolist() if token != eos])
