"""Compare our pseudo-log-likelihoods with those of minicons, on the same random BERT with a WordPiece
vocabulary.

    python3 -m venv DIRECTORY && DIRECTORY/bin/pip install minicons==0.3.39 'transformers<5' pillow wonderwords
    GRISTMILL_DATA=... python -m benchmarks.minicons_scores --peer DIRECTORY/bin/python [--sentences N]

minicons 0.3.39 needs transformers 4 (and imports pillow and wonderwords), so it runs in a separate
environment, on the exported model. For both forms, `original` (Salazar et al., 2020) and `within_word_l2r`
(Kauf and Ivanova, 2023), the script prints the largest difference over the sentences, in nats.
"""

import argparse
import gzip
import json
import os
import subprocess
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from tokenizer.kinds.wordpiece import train_wordpiece
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.evaluation.scoring.forms import Pseudo
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.items import read_items
from trainers.inference.tokenizer_export import save_tokenizer
from trainers.models import build_model, stock_class
from trainers.objectives.masked import Masked
from trainers.recipes.tiny_encoders import tiny_bert
from trainers.tasks.load_task import load_task

FORMS: dict[Pseudo, str] = {"token": "original", "within_word": "within_word_l2r"}
PEER = """
import json, sys
from minicons.scorer import MaskedLMScorer
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

folder, names = sys.argv[1], sys.argv[2:]
marks = {f"{name}_token": f"<{name}>" for name in ("cls", "sep", "mask", "pad", "unk")}
tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json", **marks)
scorer = MaskedLMScorer(AutoModelForMaskedLM.from_pretrained(folder).eval(), "cpu", tokenizer=tokenizer)
sentences = json.load(open(f"{folder}/sentences.json"))
scores = {
    name: [scorer.sequence_score([one], reduction=lambda each: each.sum(0).item(), PLL_metric=name)[0] for one in sentences]
    for name in names
}
print(json.dumps(scores))
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", type=Path, required=True, help="the Python of an environment with minicons")
    parser.add_argument("--sentences", type=int, default=92, help="of BLiMP")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("set GRISTMILL_DATA to the directory of the development data")
    data = LocalPath(os.environ["GRISTMILL_DATA"])
    with gzip.open(data / "prose" / "wiki_en.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line in islice(lines, 2000)]
    blimp = read_items(load_task("blimp"), "test", data / "tasks", limit=1 + options.sentences // 92)
    sentences = blimp.continuations[: options.sentences]
    with tempfile.TemporaryDirectory() as name:
        folder = LocalPath(name)
        (folder / "made.json").write_bytes(train_wordpiece(texts, 2000, lowercase=True))
        encoder = Encoder.load(str(folder / "made.json"))
        sizes = Model("bert", layers=2, width=64, heads=4, positions=128, feed_forward=128, initializer_range=0.2)
        model = fill(sizes, encoder.vocab_size)
        network = build_model(model, SPECIAL_IDS, 0).eval()
        stock = stock_class(model).from_config(network.config)
        stock.load_state_dict(network.state_dict())
        stock.save_pretrained(str(folder))
        save_tokenizer(Path(folder / "made.json"), encoder.specials, replace(tiny_bert(), model=model), folder)
        (folder / "sentences.json").write_text(json.dumps(sentences))
        command = [str(options.peer), "-c", PEER, name, *FORMS.values()]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        theirs = json.loads(done.stdout.splitlines()[-1])
        for pseudo, form in FORMS.items():
            found = Scorer("ours", network, model, Masked(), encoder, pseudo=pseudo).score(
                [""] * len(sentences), sentences
            )
            gap = np.abs(found.log_likelihood - np.array(theirs[form])).max()
            tokens = int(found.tokens.sum())
            print(f"{form}: {len(sentences)} sentences, {tokens:,} tokens, largest difference {gap:.1e} nats")


if __name__ == "__main__":
    main()
