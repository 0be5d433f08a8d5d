"""CANINE with an output layer over a vocabulary (CANINE-S), or with the decoder of characters (CANINE-C);
`transformers` lacks both.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import CanineConfig, CanineModel, CaninePreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.canine.modeling_canine import (
    CanineIntermediate,
    CanineOutput,
    CanineSelfAttention,
    CanineSelfOutput,
)

from tokenizer.vocabulary.specials import MASK
from trainers.models.encoders.canine_characters import CODE_POINTS, CharacterLayout, Spelling, special_spellings
from trainers.models.interface import PER_POSITION
from trainers.objectives.shared.spellings import numbered_spellings


class SubwordHead(torch.nn.Module):
    """BERT's output layer for masked tokens, but with an untied matrix, because CANINE has no token
    embeddings.
    """

    def __init__(self, config: CanineConfig) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = torch.nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = torch.nn.Linear(config.hidden_size, config.subword_vocab_size)

    def forward(self, states: Any) -> Any:
        """Return logits [..., vocabulary] for states [..., width]."""
        return self.decoder(self.norm(torch.nn.functional.gelu(self.dense(states))))


class CharacterDecoder(torch.nn.Module):
    """A decoder that predicts masked characters one after another in a given order, with one layer of
    attention (Clark et al., 2022, section 3.2).

    The embedding of each predicted character and the encoder's state for it are concatenated and projected to
    the width of the model (`merge`). The paper does not say how a character is prevented from seeing itself.
    Here a layer with two streams does this, as in XLNet. The query of a character contains the embedding of a
    mask instead of the character's own. It attends to itself and to the characters before it, whose keys and
    values contain their own embeddings.

    Embeddings are those of the encoder's characters, without positions, because the states already encode
    positions.
    """

    def __init__(self, config: CanineConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.merge, self.norm = torch.nn.Linear(2 * width, width), torch.nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.attention, self.attended = CanineSelfAttention(config), CanineSelfOutput(config)
        self.inner, self.outer = CanineIntermediate(config), CanineOutput(config)
        self.predict = torch.nn.Linear(width, config.character_buckets)

    def forward(self, states: Any, masks: Any, characters: Any, earlier: Any) -> Any:
        """Return the states that predict n characters per row. `states` are the encoder's states for these
        characters, `characters` their embeddings, and `masks` the embeddings of their masks; all of these are
        [rows, n, width]. `earlier`, bool [rows, n, n], is true at [r, i, j] if character j of row r is
        predicted before character i.
        """
        queries, contents = (self._merged(states, each) for each in (masks, characters))
        own = torch.eye(states.shape[1], dtype=torch.bool, device=states.device).expand_as(earlier)
        seen = torch.cat([own, earlier], dim=2).float()
        found = self.attention(queries, torch.cat([queries, contents], dim=1), attention_mask=seen)[0]
        found = self.attended(found, queries)
        return self.outer(self.inner(found), found)

    def _merged(self, states: Any, embedded: Any) -> Any:
        return self.norm(torch.nn.functional.gelu(self.merge(torch.cat([states, embedded], dim=-1))))

    @property
    def multiplied(self) -> int:
        """The number of multiplications per predicted character, without the output layer."""
        twice = (self.merge, self.norm, self.attention.key, self.attention.value)
        own = sum(parameter.numel() for parameter in self.parameters()) - self.predict.weight.numel()
        return own + sum(parameter.numel() for module in twice for parameter in module.parameters())


class CanineForSubwords(CaninePreTrainedModel):
    """CANINE with an output layer: `cls`, which predicts subwords, or, if the configuration has
    `character_buckets`, `decoder`, which predicts characters.
    """

    def __init__(self, config: CanineConfig) -> None:
        super().__init__(config)
        self.canine = CanineModel(config, add_pooling_layer=False)
        predicts_characters = getattr(config, "character_buckets", None) is not None
        self.decoder: Any = CharacterDecoder(config) if predicts_characters else None
        self.cls: Any = SubwordHead(config) if self.decoder is None else None
        self.layout: CharacterLayout | None = None
        self._store(Spelling.of(numbered_spellings(config.subword_vocab_size)))
        self.post_init()

    def get_output_embeddings(self) -> Any:
        """Return the output layer."""
        return self.decoder.predict if self.cls is None else self.cls.decoder

    def get_input_embeddings(self) -> Any:
        """Return the first of the eight tables of character embeddings."""
        return self.canine.char_embeddings.HashBucketCodepointEmbedder_0

    def _store(self, spelling: Spelling) -> None:
        self.register_buffer("spelled", spelling.content, persistent=False)
        self.register_buffer("spelled_offsets", spelling.offsets, persistent=False)

    def spell(self, spelled: Sequence[bytes], specials: dict[str, int]) -> None:
        """Set the UTF-8 bytes of every token: those in `spelled`, or CANINE's code point if the token is
        special.
        """
        own = special_spellings(spelled, specials)
        spelling = Spelling.of([*own, *[b""] * (self.config.subword_vocab_size - len(own))])
        device = self.spelled.device
        self._store(Spelling(spelling.content.to(device), spelling.offsets.to(device)))

    @property
    def characters_per_token(self) -> float:
        """The mean number of bytes per token, as an estimate of the mean number of characters."""
        return Spelling(self.spelled, self.spelled_offsets).mean

    def read(self, ids: Any, starts: Any, types: Any = None, covered: Any = None, read: Any = None) -> Any:
        """Return the states of tokens, [rows, length, width]; the arguments are those of `Spelling.lay_out`.
        If the model has a task head that makes one prediction per text, the first token of each document gets
        the state of the document's first molecule.
        """
        spelling = Spelling(self.spelled, self.spelled_offsets)
        self.layout = layout = (
            spelling.estimate(ids) if ids.is_meta else spelling.lay_out(ids, starts, types, covered, read)
        )
        states, molecules = self._states(layout)
        found = layout.of_characters(states)
        kind = getattr(getattr(self, "task_head", None), "kind", None)
        if kind is None or kind in PER_POSITION:
            return found
        return torch.where((layout.place == 0)[..., None], layout.of_molecules(molecules), found)

    def decode(self, inputs: Any, starts: Any) -> Any:
        """Return the states [rows, targets, width] that predict masked characters. `inputs.decoder` must be
        set; `starts` is that of `Spelling.lay_out`.
        """
        ids, spelling = inputs.ids, Spelling(self.spelled, self.spelled_offsets)
        self.layout = layout = (
            spelling.estimate(ids)
            if ids.is_meta
            else spelling.lay_out(ids, starts, inputs.token_types, inputs.covered, None)
        )
        columns, characters = inputs.order.clamp(min=0), inputs.decoder.ids
        at = layout.document.gather(1, columns), layout.place.gather(1, columns) + inputs.read
        states = self._states(layout)[0][at]
        numbers = torch.arange(columns.shape[1], device=ids.device)
        earlier = inputs.decoder.mask[:, 0] & (numbers < numbers[:, None])
        masks = torch.full_like(characters[:1, :1], ord(CODE_POINTS[MASK])).expand_as(characters)
        return self.decoder(states, self._embedded(masks), self._embedded(characters), earlier)

    def _embedded(self, characters: Any) -> Any:
        config, embeddings = self.config, self.canine.char_embeddings
        sizes = (config.hidden_size, config.num_hash_functions, config.num_hash_buckets)
        return embeddings._embed_hash_buckets(characters, *sizes)

    def _states(self, layout: CharacterLayout) -> tuple[Any, Any]:
        """Return the states of characters [documents, places, width] and of molecules [documents, molecules,
        width].

        The parts of the stock model are called one by one, because the whole model inspects the values of its
        masks, which tensors on `meta` do not have.
        """
        stack, present = self.canine, layout.present
        documents, width = present.shape
        last = self.config.num_hash_buckets - 1  # later characters share the last position
        places = torch.arange(width, device=present.device).clamp(max=last)[None]
        embedded = stack.char_embeddings(layout.characters, layout.types, places)
        seen = present[:, None].float().expand(-1, width, -1)
        characters = stack.initial_char_encoder(embedded, attention_mask=seen).last_hidden_state
        occupied = present.view(documents, -1, self.config.downsampling_rate).any(2)
        molecules = stack.chars_to_molecules(characters)
        molecules = stack.encoder(molecules, attention_mask=_blocked(occupied, molecules.dtype)).last_hidden_state
        merged = torch.cat([characters, stack._repeat_molecules(molecules, char_seq_length=width)], dim=-1)
        mask = _blocked(present, merged.dtype)
        return stack.final_char_encoder(stack.projection(merged), attention_mask=mask).last_hidden_state, molecules

    def forward(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None, **_: Any
    ) -> MaskedLMOutput:
        """Return the logits for every character. `input_ids` [rows, length] holds code points, one document
        per row.

        If the configuration has no `character_buckets`, the logits are over subwords, [rows, length,
        vocabulary]. Otherwise they are over buckets of characters, [rows, length, buckets], and each
        character is predicted as if it came first in the decoder's order.
        """
        length = input_ids.shape[1]
        beyond = (0, -(-(length + 8) // 128) * 128 - length)
        present = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        ids, kinds, there = (torch.nn.functional.pad(each, beyond) for each in (input_ids, types, present))
        layout = CharacterLayout(ids, kinds, there > 0, None, None)
        states = self._states(layout)[0][:, :length]
        if self.cls is not None:
            return MaskedLMOutput(logits=self.cls(states))
        embedded = self._embedded(torch.full_like(input_ids, ord(CODE_POINTS[MASK])))
        unknown = torch.zeros(len(states), length, length, dtype=torch.bool, device=states.device)
        return MaskedLMOutput(logits=self.decoder.predict(self.decoder(states, embedded, embedded, unknown)))


def _blocked(seen: Any, dtype: Any) -> Any:
    """Return an additive attention mask, [documents, 1, 1, keys]: 0 where `seen`, bool [documents, keys], is
    true, and the lowest value of `dtype` elsewhere.
    """
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None, None]
