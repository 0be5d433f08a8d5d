from tokenizer.vocabulary.specials import BOS, EOS, FIM_PAD, MASK, PAD, SENTINELS, SPARES, SPECIAL_IDS, SPECIALS


def test_reserved_ids_never_change():
    assert len(SPECIALS) == len(set(SPECIALS)) == 128
    assert [SPECIAL_IDS[token] for token in (PAD, BOS, EOS, MASK)] == [0, 1, 2, 4]
    assert SPECIALS[3] == "<unk>"
    assert SPECIALS[5:7] == ("<cls>", "<sep>")
    assert (SPECIAL_IDS[SENTINELS[0]], SPECIAL_IDS[SENTINELS[99]]) == (7, 106)
    assert SPECIALS[107:111] == ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>")
    assert SPECIAL_IDS[FIM_PAD] == 110
    assert (SPECIAL_IDS[SPARES[0]], SPECIAL_IDS[SPARES[-1]]) == (111, 127)
