"""Sampling from a trained model."""

import sys
from dataclasses import dataclass
from typing import Any

from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.config.architecture import Model, require
from trainers.inference.prompt import choose_member, framed, read_prompt
from trainers.objectives.shared.prompt_format import PromptFormat
from trainers.objectives.shared.training_objective import TrainingObjective


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
        """Raise ValueError for a value that is out of range."""
        require(self.tokens >= 1, f"tokens: got {self.tokens}, allowed 1 and more")
        require(self.temperature >= 0, f"temperature: got {self.temperature}, allowed 0 and more")
        require(self.top_k >= 0, f"top_k: got {self.top_k}, allowed 0 (all tokens) and more")
        require(0 < self.top_p <= 1, f"top_p: got {self.top_p}, allowed above 0 to 1")


def generate(path: LocalPath, prompt: str, sampling: Sampling) -> str:
    """What the model of an export or a run makes of a prompt; the same seed gives the same text.

    The objective says how its models read prompts (`PromptFormat`): most continue them; span corruption replaces the
    sentinels in a prompt, `<extra_id_0>` and on, by what the model writes for them; denoising writes the whole text anew,
    with text in place of `<mask>`. A prompt without gaps gets one at its end where the objective needs one. A mixture's
    model reads a prompt as one of its parts (`trainers.inference.prompt.choose_member`). Generation ends at `<eos>`, after
    `sampling.tokens` tokens, or at the model's last position.
    """
    import torch

    from trainers.engine.device import compute_device
    from trainers.inference.model_export import load_trained

    sampling.check()
    trained = load_trained(path)
    sizes = trained.config.model
    if sizes.family == "encoder":
        raise ConfigError(f"{path}: holds a {sizes.architecture}, an encoder, which writes no text; use `fill-mask`")
    objective, lead, prompt = choose_member(trained.config.objective, prompt)
    encoder = Encoder.load(str(trained.tokenizer), library="tokenizers")
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
    """Ids of a prompt's text between the marks of the model's inputs, led by the special `lead`."""
    first, frame = [encoder.specials[lead]] if lead else [], objective.text_frame(family)
    if family == "encoder_decoder":
        return [*first, *framed(text, frame, encoder)]
    ids = framed([*first, *text], frame, encoder)
    return [*ids, _end(encoder)] if objective.prompt_format.closed else ids


def _with_gap(prompt: str, form: PromptFormat) -> str:
    """The prompt, with a gap at its end where the objective needs one and the prompt has none."""
    return prompt if form.gap is None or any(name in prompt for name in form.names) else f"{prompt} {form.gap}"


def _room(model: Model, tokens: int, both: bool) -> int:
    """How many tokens can be generated. Raises ConfigError if the prompt has more than the model has
    positions.
    """
    if model.scheme == "t5_bias":
        return sys.maxsize  # distances have no end
    room = model.positions if both else model.positions - tokens
    if tokens > model.positions or room < 1:
        raise ConfigError(f"--prompt: has {tokens} tokens, the model has {model.positions} positions; shorten it")
    return room


def _choice(sampling: Sampling) -> dict[str, Any]:
    """Every setting is given, because those left out come from the model's generation_config.json."""
    if sampling.temperature == 0:
        return {}
    return {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}


def _suppressed(form: PromptFormat, sizes: Model, encoder: Encoder) -> list[int]:
    """Ids that are never generated: those that only pad the vocabulary, and specials that no answer holds."""
    wanted = {"<eos>", *form.generated}
    reserved = [number for name, number in encoder.specials.items() if name not in wanted]
    kept = {_end(encoder), *(encoder.specials[name] for name in wanted if name in encoder.specials)}
    return [*(set(reserved) - kept), *range(encoder.vocab_size, sizes.vocab_size or 0)]


def _prefix(model: Any, given: Any) -> dict[str, Any]:
    """A cache of the prompt in which its tokens have seen one another in both directions, up to the last one, which sees
    all of it anyway.
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
    """The token at the end of a text."""
    return add_fallback_marks(encoder.specials)["<eos>"]
