"""A small sentence encoder in Hugging Face format: random, except that synonyms have almost equal vectors."""

from pathlib import Path

_STEMS = "mill ston river wheel grain sack bread dust beam gear flour water wind sail roof door"
SYNONYMS = [(f"{stem}a", f"{stem}o") for stem in _STEMS.split()]
"""Pairs of words that mean the same."""


def save_encoder(folder: Path, **config) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(word for pair in SYNONYMS for word in pair)]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(3)
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=64, **shape, **config))
    with torch.no_grad():
        rows = model.embeddings.word_embeddings.weight
        rows.normal_(std=1.0)
        rows[5::2] = rows[4::2] + 0.05 * rows[5::2]
    model.save_pretrained(folder)
    return folder
