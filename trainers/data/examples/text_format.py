"""The format of an example's texts for a model: the special tokens around them, and the token whose state
represents them (unless states are pooled).

    encoder            <cls> a <sep>         <cls> a <sep> b <sep>         first token
    RoBERTa            <cls> a <sep>         <cls> a <sep> <sep> b <sep>   first token
    decoder            <bos> a <cls>         <bos> a <sep> b <cls>         last token
    encoder-decoder    <bos> a <eos>         <bos> a <eos> b <eos>         last token of the decoder

The formats are those of BERT (Devlin et al., 2019, figure 4), RoBERTa (in fairseq,
`RobertaHubInterface.encode`), GPT (Radford et al., 2018, section 3.3: start, delimiter, extract) and BART
(Lewis et al., 2020, section 3.1: the same text on both sides). T5 has no `<bos>`. A decoder whose tokenizer
has no separate `<sep>` or `<cls>` reads `<eos>` instead.

In text-to-text tasks, a decoder reads `<bos> source target` and predicts `target <eos>`. An encoder-decoder
reads `source <eos>` and predicts `target <eos>`; in BART, `<bos>` comes before each.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gristmill.errors import ConfigError
from tokenizer.vocabulary.specials import BOS, CLS, EOS, PAD, SEP, add_fallback_marks
from trainers.config.architecture import Model


@dataclass(frozen=True)
class TextFormat:
    """How texts become a segment: the ids `before` the first text, `between` two texts and `after` the last
    one. In text-to-text tasks, `target_before` and `target_after` are the ids around a target.
    `decoder_start` is None except in an encoder-decoder. Tasks that read the state of a single token read
    that of the last token of the segment if `reads_last`, otherwise that of the first.

    Every segment begins with `virtual_tokens` consecutive ids from `first_virtual` on; in an encoder-decoder,
    only the encoder reads them. Positions in a segment, virtual tokens included, count from `first_position`.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    reads_last: bool
    padding: int
    token_types: bool = False
    decoder_start: int | None = None
    target_before: tuple[int, ...] = ()
    target_after: tuple[int, ...] = ()
    virtual_tokens: int = 0
    first_virtual: int = 0
    first_position: int = 0

    def marks(self, texts: int) -> int:
        """Return the number of special tokens in a segment of `texts` texts (1 or 2), not counting virtual
        tokens.
        """
        return len(self.before) + (len(self.between) if texts == 2 else 0) + len(self.after)


def text_format(
    model: Model,
    specials: Mapping[str, int],
    text_to_text: bool = False,
    virtual_tokens: int = 0,
    first_position: int = 0,
) -> TextFormat:
    """Return the format of texts for a resolved model. `specials` maps the roles of its tokenizer's special
    tokens to their ids.

    Raises ConfigError if the tokenizer lacks a special token that the format needs, or if `text_to_text` is
    set for an encoder.
    """
    roles = add_fallback_marks(specials)
    if BOS not in roles or EOS not in roles:
        raise ConfigError(
            f"init.path: its tokenizer declares no special token that begins or ends a text; it has "
            f"{', '.join(sorted(specials)) or 'none'}; use a base with {BOS} and {EOS}, or with {CLS} and {SEP}"
        )
    assert model.vocab_size is not None, "the model is resolved"
    if model.family == "encoder":
        if text_to_text:
            raise ConfigError(
                f"encoding.text_to_text: got true, {model.architecture} is an encoder, which cannot generate text; "
                f"set it to false"
            )
        form = _encoder(model, roles)
    elif model.family == "decoder":
        form = _decoder(roles, text_to_text)
    else:
        form = _encoder_decoder(model, roles)
    first = model.vocab_size
    return replace(form, virtual_tokens=virtual_tokens, first_virtual=first, first_position=first_position)


def _encoder(model: Model, roles: Mapping[str, int]) -> TextFormat:
    cls, sep = roles.get(CLS, roles[BOS]), roles.get(SEP, roles[EOS])
    between = (sep, sep) if model.architecture == "roberta" else (sep,)
    padding = roles.get(PAD, 0)
    return TextFormat((cls,), between, (sep,), False, padding, token_types=model.traits.token_types)


def _decoder(roles: Mapping[str, int], text_to_text: bool) -> TextFormat:
    bos, eos, padding = roles[BOS], roles[EOS], roles.get(PAD, 0)
    if text_to_text:
        return TextFormat((bos,), (), (), True, padding, target_after=(eos,))
    # Llama's `<s>` and `</s>` also have the roles of `<cls>` and `<sep>`. The last token must differ from the
    # first.
    sep, cls = (roles[role] if role in roles and roles[role] != bos else eos for role in (SEP, CLS))
    return TextFormat((bos,), (sep,), (cls,), True, padding)


def _encoder_decoder(model: Model, roles: Mapping[str, int]) -> TextFormat:
    before, eos = () if model.architecture == "t5" else (roles[BOS],), (roles[EOS],)
    start = model.traits.decoder_start
    assert start is not None
    if start not in roles:
        raise ConfigError(
            f"init.path: its tokenizer has no {start}, which the decoder of {model.architecture} reads first"
        )
    form = TextFormat(before, eos, eos, True, roles.get(PAD, 0))
    return replace(form, decoder_start=roles[start], target_before=before, target_after=eos)
