import pyarrow as pa

from tokenizer.encode import Encoder
from tokenizer.measure import describe_vocabulary, measure


def test_counts_of_known_texts(encoder):
    texts = pa.array(["one two  three\n", "", "né"], pa.large_string())
    found = measure(encoder, texts)
    tokens, _ = encoder.encode(texts)
    assert (found.documents, found.words, found.bytes, found.tokens) == (3, 4, 18, len(tokens))
    assert found.distinct_tokens == len(set(tokens.tolist()))
    assert found.tokens_per_word == len(tokens) / 4
    assert found.bytes_per_token == 18 / len(tokens)
    assert found.round_trip_failures == 0


def test_nothing_measured_is_zero(encoder):
    for texts in ([], ["", ""]):
        found = measure(encoder, pa.array(texts, pa.large_string()))
        assert (found.tokens, found.tokens_per_word, found.bytes_per_token, found.round_trip_failures) == (0, 0, 0, 0)


def test_a_lossy_tokenizer_is_found_out(edited):
    encoder = Encoder.load(edited(normalizer={"type": "NFC"}))
    found = measure(encoder, pa.array(["e\u0301", "plain"], pa.large_string()))
    assert found.round_trip_failures == 1


def test_a_vocabulary_of_special_tokens_only_is_described(edited):
    unknown = {"id": 0, "content": "[UNK]", "single_word": False, "lstrip": False, "rstrip": False}
    path = edited(
        model={"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
        added_tokens=[{**unknown, "normalized": False, "special": True}],
        pre_tokenizer={"type": "Whitespace"},
        decoder=None,
    )
    found = describe_vocabulary(Encoder.load(path))
    assert (found.vocab_size, found.mean_token_bytes, found.longest_tokens) == (1, 0, ())


def test_longest_tokens_are_escaped_and_leave_specials_out(encoder):
    found = describe_vocabulary(encoder, longest=5000)
    assert len(found.longest_tokens) == 2000 - 128
    assert not any(character < " " for token in found.longest_tokens for character in token)
    assert "<extra_id_10>" not in found.longest_tokens
    assert (found.kind, found.vocab_size, len(found.specials)) == ("byte_bpe", 2000, 128)
    assert found.mean_token_bytes > 1
    assert describe_vocabulary(encoder, longest=3).longest_tokens == found.longest_tokens[:3]
