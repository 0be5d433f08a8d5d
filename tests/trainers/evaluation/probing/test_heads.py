"""Attention heads: the summaries equal those computed from stock `transformers`, watching changes no
likelihood, and masking a head equals setting its output weights to zero.
"""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow.csv import read_csv

from gristmill.errors import UserError
from tests.trainers.evaluation.scored_models import OBJECTIVES, WORDS, encoder, ids_of, network_of, scorer_of
from tests.trainers.models.test_models import TINY
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.__main__ import main
from trainers.evaluation.heads_page import render_heads
from trainers.evaluation.probing.head_effects import HeadEffects, LossChange, head_effects
from trainers.evaluation.probing.head_summaries import summarise_heads
from trainers.evaluation.probing.head_watch import HeadSite, watch_heads
from trainers.evaluation.probing.hidden_states import StateReader
from trainers.models import build_model

DRAW = np.random.default_rng(2)
TEXTS = [" ".join(DRAW.choice(WORDS, size)) for size in (9, 4, 14)]
WATCHED = ["albert", "gpt2", "llama", "bert", "roberta", "modernbert", "t5", "bart"]


def reader_of(name, folder):
    model, network = network_of(name)
    return StateReader(name, network, model, OBJECTIVES[name], encoder(folder))


def attentions(name, folder, text):
    """Return the attention weights of `transformers`' eager attention for a text, by stack and kind, each of
    shape [layers, heads, queries, keys], and the ids that each stack reads.
    """
    _, network = network_of(name)
    specials, ids = SPECIAL_IDS, ids_of(folder, text)
    frames = {"gpt2": ("<bos>", None), "llama": ("<bos>", None), "t5": (None, "<eos>"), "bart": ("<bos>", "<eos>")}
    before, after = frames.get(name, ("<cls>", "<sep>"))
    whole = [*([specials[before]] if before else []), *ids, *([specials[after]] if after else [])]
    arrays = {"input_ids": torch.tensor([whole])}
    read = {"decoder": whole, "encoder": whole}
    if name in ("t5", "bart"):
        start = [specials["<pad>"]] if name == "t5" else [specials["<eos>"], specials["<bos>"]]
        read["decoder"] = [*start, *ids]
        arrays["decoder_input_ids"] = torch.tensor([read["decoder"]])
    network.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            output = network(**arrays, output_attentions=True)
    finally:
        network.set_attn_implementation("sdpa")
    if name in ("t5", "bart"):
        kinds = {("encoder", "self"): "encoder", ("decoder", "self"): "decoder", ("decoder", "cross"): "cross"}
        return {kind: torch.cat(output[f"{key}_attentions"]).double().numpy() for kind, key in kinds.items()}, read
    return {("decoder", "self"): torch.cat(output.attentions).double().numpy()}, read


@pytest.mark.long
@pytest.mark.parametrize("name", WATCHED)
def test_summaries_are_those_of_the_weights_of_transformers(name, tmp_path):
    reader, (model, _) = reader_of(name, tmp_path), network_of(name)
    found = summarise_heads(reader, model.architecture, reader.encode(TEXTS))
    sums, count = {}, 0
    marks = set(SPECIAL_IDS.values())
    for text in TEXTS:
        weights, read = attentions(name, tmp_path, text)
        special = {stack: np.array([token in marks for token in ids]) for stack, ids in read.items()}
        count += len(ids_of(tmp_path, text))
        for (stack, attends), each in weights.items():
            keys = special["encoder" if attends == "cross" else stack]
            far = np.abs(np.arange(each.shape[2])[:, None] - np.arange(each.shape[3]))
            logs = np.log(np.where(each > 0, each, 1))
            values = [-(each * logs).sum(3), (each * far).sum(3), each[..., 0], each[..., keys].sum(3)]
            own = np.stack([value[..., ~special[stack]].sum(2) for value in values])  # [values, layers, heads]
            sums[stack, attends] = sums.get((stack, attends), 0) + own
    assert {(site.stack, site.attends) for site in found} == set(sums)
    for site, summary in found.items():
        entropy, distance, first, special = sums[site.stack, site.attends][:, site.layer - 1] / count
        assert summary.entropy == pytest.approx(entropy, abs=1e-4)
        assert summary.first == pytest.approx(first, abs=1e-4)
        assert summary.special == pytest.approx(special, abs=1e-4)
        if site.attends == "cross":
            assert summary.distance is None
        else:
            assert summary.distance == pytest.approx(distance, abs=1e-3)
    assert max(np.ptp(summary.first) for summary in found.values()) > 1e-4
    assert network_of(name)[1].config._attn_implementation == "sdpa"


@pytest.mark.long
@pytest.mark.parametrize("name", WATCHED)
def test_watching_and_the_batch_change_no_likelihood(name, tmp_path):
    model, network = network_of(name)
    requests, _ = scorer_of(name, tmp_path).windows(reader_of(name, tmp_path).encode(TEXTS), 20)
    plain = scorer_of(name, tmp_path).score_ids(requests).log_likelihood
    with watch_heads(network, model.architecture) as watch:
        watched = scorer_of(name, tmp_path).score_ids(requests).log_likelihood
        site = next(iter(watch.heads))
        watch.gates[site] = torch.tensor([0.0, 1.0, 1.0, 0.0])
        masked = [scorer_of(name, tmp_path, batch_positions=p).score_ids(requests).log_likelihood for p in (1, 4096)]
    assert watched == pytest.approx(plain, abs=1e-4)
    assert masked[0] == pytest.approx(masked[1], abs=1e-4)
    assert scorer_of(name, tmp_path).score_ids(requests).log_likelihood == pytest.approx(plain, abs=1e-6)
    if name != "t5":  # whose initial weights are so small that heads hardly matter
        assert np.abs(masked[0] - plain).max() > 1e-3


def test_a_masked_head_is_one_whose_output_weights_are_zero(tmp_path):
    """Masking a head of GPT-2 gives the same loss as setting the head's rows of the output projection to
    zero.
    """
    scorer, (model, network) = scorer_of("gpt2", tmp_path), network_of("gpt2")
    requests, _ = scorer.windows(reader_of("gpt2", tmp_path).encode(TEXTS), 20)
    effects = head_effects(scorer, "gpt2", requests, lambda line: None)
    whole = scorer.score_ids(requests)
    assert effects.loss == pytest.approx(-whole.log_likelihood.sum() / whole.tokens.sum(), abs=1e-6)
    width = model.width // model.heads
    for layer, block in enumerate(network.transformer.h, 1):
        weight = block.attn.c_proj.weight
        for head in range(model.heads):
            kept = weight.data.clone()
            weight.data[head * width : (head + 1) * width] = 0
            found = scorer.score_ids(requests)
            weight.data = kept
            change = effects.alone[HeadSite("decoder", layer, "self")][head]
            assert change.loss == pytest.approx(-found.log_likelihood.sum() / found.tokens.sum(), abs=1e-5)
            assert change.change == pytest.approx(change.loss - effects.loss, abs=1e-6)
    assert [many for many, _ in effects.pruned] == [1, 2, 3, 4, 5, 6, 7, 8]
    least = min((each.change, site.layer, head) for site, its in effects.alone.items() for head, each in enumerate(its))
    assert effects.pruned[0][1].change == pytest.approx(least[0], abs=1e-6)


def test_relative_positions_are_in_the_weights(tmp_path):
    model = TINY["bert, clipped relative positions"]
    network = build_model(model, SPECIAL_IDS, 0).eval()
    seen = []
    with watch_heads(network, "bert") as watch, torch.no_grad():
        watch.observe = lambda site, weights: seen.append(weights)
        mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
        network(torch.arange(10, 16)[None], attention_mask=mask)
    assert len(seen) == model.layers
    assert seen[0].shape == (1, 6, model.heads, 6)
    assert torch.allclose(seen[0].sum(3), torch.ones(1, 6, model.heads), atol=1e-5)
    assert network.config._attn_implementation == "relative_sdpa"


@pytest.mark.long
def test_the_command_writes_a_row_for_each_head(decoder_run, tmp_path, capsys):
    (tmp_path / "book.txt").write_text("a cab bade a dead face, fab cafe decade, bag had a bed. " * 20)
    command = ["heads", str(decoder_run), "--text", str(tmp_path / "book.txt"), "--tokens", "150", "--output"]
    assert main([*command, str(tmp_path / "heads.parquet")]) == 0
    shown = capsys.readouterr()
    rows = pq.read_table(tmp_path / "heads.parquet").to_pylist()
    heads = len(rows)
    assert re.search(rf"{heads} heads, \d+ passes over 150 tokens", shown.err)
    assert re.search(rf"{heads} of {heads} +\d", shown.out)
    assert all(0 <= row["to_first"] <= 1 and row["entropy"] >= 0 and row["distance"] > 0 for row in rows)
    assert len({(row["layer"], row["head"]) for row in rows}) == heads
    assert main([*command, str(tmp_path / "heads.csv")]) == 0
    assert read_csv(str(tmp_path / "heads.csv"))["head"].to_pylist() == [row["head"] for row in rows]
    assert main([*command, str(tmp_path / "heads.html")]) == 0
    assert (tmp_path / "heads.html").read_text().count('<td class="n" style=') == 5 * heads
    assert main([*command, str(tmp_path / "heads.json")]) == 0
    assert json.loads((tmp_path / "heads.json").read_text())["pruned"][-1]["masked"] == heads
    assert main([*command, str(tmp_path / "heads.txt")]) == 2
    assert "expected a name that ends in .html, .parquet, .csv or .json" in capsys.readouterr().err


def test_the_page_has_every_head_and_marks_those_that_matter():
    """Names on the page are escaped, and the page has no scripts."""
    site = HeadSite("decoder", 1, "self")
    sure, unsure, single = (LossChange(2.0 + c, c, e) for c, e in ((0.5, 0.1), (0.01, 0.1), (-0.2, float("nan"))))
    effects = HeadEffects(2.0, {site: [sure, unsure, single]}, [(1, unsure), (3, single)], 1234)
    rows = [
        {"layer": "1", "attends": attends, "head": head, "entropy": 1.0 + head, "distance": distance, "to_first": 0.5,
         "to_special": 0.0, "loss_change": each.change, "error": None if each is single else each.error}
        for attends, distance in (("self", 2.0), ("cross", None))
        for head, each in enumerate((sure, unsure, single))
    ]  # fmt: skip
    page = render_heads("runs/<b>a", "some/<i>book.txt", pa.Table.from_pylist(rows), effects)
    assert "&lt;b&gt;a: attention heads" in page
    assert "&lt;i&gt;book.txt · 1,234 tokens · 3 heads · 2.0000 nats per token" in page
    assert "<b>a" not in page
    assert "<script" not in page
    assert page.count("<b>+0.500</b>") == 2
    assert page.count(">+0.010</td>") == page.count(">-0.200</td>") == 2
    assert page.count("1, cross-attention") == 5
    assert page.count(">–</td>") == 3  # cross-attention has no distance
    assert "nan" not in page.partition("</style>")[2].lower()


def test_gpt_cannot_be_watched():
    _, network = network_of("gpt")
    with pytest.raises(UserError, match="heads: the attention of gpt cannot be watched"), watch_heads(network, "gpt"):
        pass
