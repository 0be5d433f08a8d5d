"""Sampling from a trained model."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gristmill.errors import ConfigError
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import MASK, SENTINELS, with_stand_ins
from trainers.config.architecture import FAMILY, Model, require
from trainers.config.pretraining import Pretraining
from trainers.inference.prompt import asked, framed, has_sentinels, read_prompt, text_frame, writable
from trainers.objectives.denoising import Denoising
from trainers.objectives.mixture import sees_prefix
from trainers.objectives.span_corruption import SpanCorruption


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
    """The text that the model of an export or a run makes of a prompt; the same seed gives the same text.

    A prompt is continued. Models of objectives that fill gaps get it as they were trained: sentinels `<extra_id_0>` and
    on in the prompt are replaced by what the model puts there, BART's `<mask>` by the text that it writes anew; without
    any, one is set at the end. Generation ends at `<eos>`, after `sampling.tokens` tokens, or at the model's last
    position. A mixture's model gets the token of the part that the prompt is for (`trainers.inference.prompt.asked`).
    """
    import torch

    from trainers.engine.device import compute_device
    from trainers.inference.model_export import load_trained

    sampling.check()
    trained = load_trained(path)
    sizes = trained.config.model
    if FAMILY[sizes.architecture] == "encoder":
        raise ConfigError(f"{path}: holds a {sizes.architecture}, an encoder, which writes no text; use `fill-mask`")
    objective, token, prompt = asked(trained.config.objective, prompt)
    config = replace(trained.config, objective=objective)
    encoder = Encoder.load(str(trained.tokenizer), library="tokenizers")
    text = read_prompt(_with_gap(prompt, objective), encoder, writable(objective))
    both = FAMILY[config.model.architecture] == "encoder_decoder"
    ids = _read(text, token, config, encoder)
    room = _room(config.model, len(ids), both)
    torch.manual_seed(sampling.seed)
    model = trained.model.to(compute_device())
    given = torch.tensor([ids], device=model.device)
    with torch.no_grad():
        output = model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=min(sampling.tokens, room),
            do_sample=sampling.temperature > 0,
            suppress_tokens=_suppressed(config, encoder),
            **_choice(sampling),
            **_prefix(model, given) if not both and sees_prefix(config.objective) else {},
        )[0].tolist()
    made = [token for token in output[1 if both else len(ids) :] if token != _end(encoder)]
    return _told(text, made, config, encoder)


def _read(text: list[int], token: str | None, config: Pretraining, encoder: Encoder) -> list[int]:
    """Ids of a prompt's text as the model reads inputs, led by `token`."""
    lead, frame = [encoder.specials[token]] if token else [], text_frame(config)
    if FAMILY[config.model.architecture] == "encoder_decoder":
        return [*lead, *framed(text, frame, encoder)]
    ids = framed([*lead, *text], frame, encoder)
    if isinstance(config.objective, Denoising | SpanCorruption):
        ids.append(_end(encoder))  # the end of the input; the target follows
    return ids


def _with_gap(prompt: str, objective: Any) -> str:
    """The prompt with a gap at its end where it has none, for models that fill gaps."""
    gap = None
    if isinstance(objective, SpanCorruption) and objective.style == "replace":
        gap = SENTINELS[0]
    elif isinstance(objective, Denoising) and (objective.infilling or objective.masking):
        gap = MASK
    return prompt if gap is None or any(name in prompt for name in writable(objective)) else f"{prompt} {gap}"


def _room(model: Model, tokens: int, both: bool) -> int:
    """How many tokens can be generated. ConfigError where the prompt has more than the model has positions."""
    if model.architecture == "t5":
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


def _suppressed(config: Pretraining, encoder: Encoder) -> list[int]:
    """Reserved ids, and those that only fill up the vocabulary, stand for no text; sentinels do where they part spans."""
    wanted = {"<eos>", *(SENTINELS if has_sentinels(config.objective) else ())}
    reserved = [number for name, number in encoder.specials.items() if name not in wanted]
    kept = {_end(encoder), *(encoder.specials[name] for name in wanted if name in encoder.specials)}
    return [*(set(reserved) - kept), *range(encoder.vocab_size, config.model.vocab_size or 0)]


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


def _told(text: list[int], made: list[int], config: Pretraining, encoder: Encoder) -> str:
    """The prompt with its gaps filled or its continuation, or the text as the model wrote it anew."""
    if has_sentinels(config.objective) and any(token in text for token in _sentinels(encoder)):
        return encoder.decode(_filled(text, made, _sentinels(encoder)))
    if isinstance(config.objective, Denoising | SpanCorruption):
        return encoder.decode([token for token in made if token != with_stand_ins(encoder.specials)["<bos>"]])
    return encoder.decode([*text, *made])


def _end(encoder: Encoder) -> int:
    """The token at the end of a text."""
    return with_stand_ins(encoder.specials)["<eos>"]


def _sentinels(encoder: Encoder) -> set[int]:
    return {encoder.specials[name] for name in SENTINELS if name in encoder.specials}


def _filled(text: list[int], made: list[int], sentinels: set[int]) -> list[int]:
    """Each sentinel of the text replaced by what stands behind it in what the model made; what stands before any of them
    there belongs to the first.
    """
    spans: dict[int, list[int]] = {}
    current = spans.setdefault(next(token for token in text if token in sentinels), [])
    for token in made:
        if token in sentinels:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [piece for token in text for piece in (spans.get(token, []) if token in sentinels else [token])]
