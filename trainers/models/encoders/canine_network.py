"""CANINE with an output layer over a vocabulary, which `transformers` lacks (the authors' CANINE-S)."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import CanineConfig, CanineModel, CaninePreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput

from trainers.models.encoders.canine_characters import CharacterLayout, Spelling, special_spellings
from trainers.models.interface import PER_POSITION
from trainers.objectives.shared.spellings import numbered_spellings


class SubwordHead(torch.nn.Module):
    """BERT's output layer for masked tokens, whose matrix is its own: there are no embeddings of tokens."""

    def __init__(self, config: CanineConfig) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = torch.nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = torch.nn.Linear(config.hidden_size, config.subword_vocab_size)

    def forward(self, states: Any) -> Any:
        """Return logits [..., vocabulary] for states [..., width]."""
        return self.decoder(self.norm(torch.nn.functional.gelu(self.dense(states))))


class CanineForSubwords(CaninePreTrainedModel):
    """CANINE and the head that predicts subwords. It reads the characters of tokens that `spell` gives it."""

    def __init__(self, config: CanineConfig) -> None:
        super().__init__(config)
        self.canine = CanineModel(config, add_pooling_layer=False)
        self.cls = SubwordHead(config)
        self.layout: CharacterLayout | None = None
        self._store(Spelling.of(numbered_spellings(config.subword_vocab_size)))
        self.post_init()

    def get_output_embeddings(self) -> Any:
        """Return the output layer."""
        return self.cls.decoder

    def get_input_embeddings(self) -> Any:
        """Return the first of the tables of embeddings."""
        return self.canine.char_embeddings.HashBucketCodepointEmbedder_0

    def _store(self, spelling: Spelling) -> None:
        self.register_buffer("spelled", spelling.content, persistent=False)
        self.register_buffer("spelled_offsets", spelling.offsets, persistent=False)

    def spell(self, spelled: Sequence[bytes], specials: dict[str, int]) -> None:
        """Give the tokens the bytes `spelled`, and special tokens by name their code points."""
        own = special_spellings(spelled, specials)
        spelling = Spelling.of([*own, *[b""] * (self.config.subword_vocab_size - len(own))])
        device = self.spelled.device
        self._store(Spelling(spelling.content.to(device), spelling.offsets.to(device)))

    @property
    def characters_per_token(self) -> float:
        """The mean number of bytes of a token."""
        return Spelling(self.spelled, self.spelled_offsets).mean

    def read(self, ids: Any, starts: Any, types: Any = None, covered: Any = None, read: Any = None) -> Any:
        """Return the states of tokens [rows, length, width]; the arguments are those of `Spelling.lay_out`. With the head of a
        whole text, that of the first token of a document is the state of its first molecule.
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

    def _states(self, layout: CharacterLayout) -> tuple[Any, Any]:
        """Return the states of characters [documents, places, width] and of molecules [documents, molecules, width].

        The parts of the stock model are called one by one, because it asks for values of its masks, which need a transfer from
        the device and which `meta` has not.
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
        """Return the logits [rows, length, vocabulary] at every character of rows of code points, each one document."""
        length = input_ids.shape[1]
        beyond = (0, -(-(length + 8) // 128) * 128 - length)
        present = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        ids, kinds, there = (torch.nn.functional.pad(each, beyond) for each in (input_ids, types, present))
        layout = CharacterLayout(ids, kinds, there > 0, None, None)
        return MaskedLMOutput(logits=self.cls(self._states(layout)[0][:, :length]))


def _blocked(seen: Any, dtype: Any) -> Any:
    """Return what is added to attention scores, [documents, 1, 1, keys], for keys of which `seen`, bool [documents, keys], can be
    read.
    """
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None, None]
