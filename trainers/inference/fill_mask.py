"""Predict the masked tokens of a text with an encoder."""

from gristmill.errors import ConfigError
from gristmill.host import lent
from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import MASK
from trainers.inference.prompt import framed, read_prompt


def fill_mask(path: LocalPath, text: str, top: int = 5) -> list[list[tuple[str, float]]]:
    """Return, for each `<mask>` in a text, the `top` most probable tokens with their probabilities. Special
    tokens are excluded before probabilities are computed.

    Raises ConfigError if the model does not predict masked tokens, or if the text has no mask or is too long
    for the model.
    """
    import torch

    from trainers.engine.hardware.device import compute_device
    from trainers.inference.model_export import load_trained
    from trainers.models import MODELS, language_model
    from trainers.models.interface import Inputs

    trained = load_trained(path)
    sizes = trained.config.model
    if sizes.family != "encoder":
        raise ConfigError(f"{path}: holds a {sizes.architecture}, which is not an encoder; use `generate`")
    if sizes.traits.predicts_no_masks:
        raise ConfigError(f"{path}: holds {sizes.architecture}, which predicts no masks; give another encoder")
    objective = trained.config.objective
    if objective.contrast is not None or objective.predicts_characters:
        raise ConfigError(f"{path}: was trained with {objective.kind}, which predicts no masks; give another encoder")
    encoder = Encoder.load(lent(trained.tokenizer), library="tokenizers")
    ids = framed(read_prompt(text, encoder, objective.prompt_format.names), objective.text_frame("encoder"), encoder)
    places = [place for place, token in enumerate(ids) if token == encoder.specials[MASK]]
    if not places:
        raise ConfigError(f"--text: has no {MASK}; write one where a token is to be predicted")
    if len(ids) > sizes.positions:
        raise ConfigError(f"--text: has {len(ids)} tokens, the model has {sizes.positions} positions; shorten it")
    device = compute_device()
    model, _ = language_model(trained.model.to(device), sizes)
    everything = torch.ones(1, 1, len(ids), len(ids), dtype=torch.bool, device=device)
    inputs = Inputs(torch.tensor([ids], device=device), torch.arange(len(ids), device=device)[None], everything)
    architecture = MODELS[sizes.architecture]
    with torch.no_grad():
        states = architecture.hidden(model, inputs)[0, places]
        logits = architecture.logits(model, states).float()
    logits[:, encoder.vocab_size :] = -torch.inf
    logits[:, sorted(set(encoder.specials.values()))] = -torch.inf
    shares, tokens = logits.softmax(dim=1).topk(min(top, int(logits[0].isfinite().sum())))
    return [
        [(encoder.decode([token]), share) for token, share in zip(row.tolist(), row_shares.tolist(), strict=True)]
        for row, row_shares in zip(tokens, shares, strict=True)
    ]
