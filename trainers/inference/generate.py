"""Generate text with a trained model, greedily or by sampling."""

import sys
from dataclasses import dataclass
from typing import Any

from gristmill.errors import ConfigError
from gristmill.host import lent
from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.config.architecture import Model, require
from trainers.inference.prompt import choose_member, framed, read_prompt
from trainers.objectives.shared.prompt_format import PromptFormat
from trainers.objectives.shared.training_objective import TrainingObjective


@dataclass(frozen=True)
class Sampling:
    """Settings for generating text. `tokens` is the maximum number of tokens. `temperature` 0 takes the most
    probable token. `top_k` 0 and `top_p` 1 keep all tokens.
    """

    tokens: int = 100
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 0.95
    seed: int = 0

    def check(self) -> None:
        """Raise ValueError for a setting that is out of range."""
        require(self.tokens >= 1, f"tokens: got {self.tokens}, allowed 1 or more")
        require(self.temperature >= 0, f"temperature: got {self.temperature}, allowed 0 or more")
        require(self.top_k >= 0, f"top_k: got {self.top_k}, allowed 0 (all tokens) or more")
        require(0 < self.top_p <= 1, f"top_p: got {self.top_p}, allowed above 0 and at most 1")


def generate(path: LocalPath, prompt: str, sampling: Sampling) -> str:
    """Return the text that the model of an export or a run generates from a prompt.

    How a model reads the prompt depends on the objective that it was trained on:

    - Most models continue the prompt.
    - Span corruption with sentinels, and salient spans: the model generates text for each sentinel in the
      prompt (`<extra_id_0>` and so on).
    - Multi-task pretraining: the model writes the target of the prompt.
    - Denoising: the model rewrites the whole text and fills in each `<mask>`.
    - Gap sentences: the model writes only the missing sentences.
    - Mixture: one member determines how the prompt is read (`choose_member`).

    If the objective fills gaps and the prompt has none, one is appended. Raises ConfigError for an encoder,
    and for a prompt that is too long for the model.
    """
    import torch

    from trainers.engine.hardware.device import compute_device
    from trainers.inference.model_export import load_trained

    sampling.check()
    trained = load_trained(path)
    sizes = trained.config.model
    if sizes.family == "encoder":
        raise ConfigError(f"{path}: holds a {sizes.architecture}, an encoder, which writes no text; use `fill-mask`")
    objective, lead, prompt = choose_member(trained.config.objective, prompt)
    encoder = Encoder.load(lent(trained.tokenizer), library="tokenizers")
    text = read_prompt(_with_gap(prompt, objective.prompt_format), encoder, objective.prompt_format.names)
    both = sizes.family == "encoder_decoder"
    ids = _model_input(text, lead, objective, sizes.family, encoder)
    room = _room(sizes, len(ids), both)
    torch.manual_seed(sampling.seed)
    model = trained.model.to(compute_device())
    given = torch.tensor([ids], device=model.device)
    with torch.no_grad():
        output = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=min(sampling.tokens, room),
            do_sample=sampling.temperature > 0,
            suppress_tokens=_suppressed(objective.prompt_format, sizes, encoder),
            **_choice(sampling),
            **_prefix(model, given) if not both and objective.sees_prefix else {},
        )[0].tolist()
    generated = [token for token in output[1 if both else len(ids) :] if token != _end(encoder)]
    return encoder.decode(objective.prompt_format.answer(text, generated, encoder.specials))


def _model_input(
    text: list[int], lead: str | None, objective: TrainingObjective, family: str, encoder: Encoder
) -> list[int]:
    first, frame = [encoder.specials[lead]] if lead else [], objective.text_frame(family)
    if family == "encoder_decoder":
        return [*first, *framed(text, frame, encoder)]
    ids = framed([*first, *text], frame, encoder)
    return [*ids, _end(encoder)] if objective.prompt_format.closed else ids


def _with_gap(prompt: str, form: PromptFormat) -> str:
    return prompt if form.gap is None or any(name in prompt for name in form.names) else f"{prompt} {form.gap}"


def _room(model: Model, tokens: int, both: bool) -> int:
    if model.scheme == "t5_bias":
        return sys.maxsize  # relative positions do not limit the length
    room = model.positions if both else model.positions - tokens
    if tokens > model.positions or room < 1:
        raise ConfigError(f"--prompt: has {tokens} tokens, the model has {model.positions} positions; shorten it")
    return room


def _choice(sampling: Sampling) -> dict[str, Any]:
    """Return temperature, top_k and top_p as arguments for the model's `generate` method; empty for greedy
    decoding. All three are passed, because the method replaces a missing one with the model's own default.
    """
    if sampling.temperature == 0:
        return {}
    return {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}


def _suppressed(form: PromptFormat, sizes: Model, encoder: Encoder) -> list[int]:
    wanted = {"<eos>", *form.generated}
    reserved = [number for name, number in encoder.specials.items() if name not in wanted]
    kept = {_end(encoder), *(encoder.specials[name] for name in wanted if name in encoder.specials)}
    return [*(set(reserved) - kept), *range(encoder.vocab_size, sizes.vocab_size or 0)]


def _prefix(model: Any, given: Any) -> dict[str, Any]:
    """Return the key-value cache of the prompt, computed with bidirectional attention, as an argument for the
    model's `generate` method; empty if the prompt has only one token. The cache excludes the last token, from
    which generation starts.
    """
    import torch

    length = given.shape[1]
    if length < 2:
        return {}
    everything = torch.ones(1, 1, length, length, dtype=torch.bool, device=given.device)
    cache = model(input_ids=given, attention_mask=everything, use_cache=True).past_key_values
    cache.crop(-1)
    return {"past_key_values": cache}


def _end(encoder: Encoder) -> int:
    return add_fallback_marks(encoder.specials)["<eos>"]
