"""The tokenizer files in the export of a character model: `transformers` reads our ids from a text and
restores the text.
"""

import pyarrow as pa

from tokenizer.encode import Encoder
from tokenizer.kinds.train import train
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.inference.tokenizer_export import save_tokenizer
from trainers.recipes import llama_tiny


def test_transformers_reads_characters(tmp_path):
    from transformers import AutoTokenizer

    text = "Zwölf\r\nBoxkämpfer e\u0301 , 中文 👩\u200d👧 !"
    source = tmp_path / "tokenizer.json"
    source.write_bytes(train("characters", [text], None))
    (tmp_path / "export").mkdir()
    save_tokenizer(source, SPECIAL_IDS, llama_tiny(), tmp_path / "export")
    exported = AutoTokenizer.from_pretrained(tmp_path / "export")
    ids = exported(text)["input_ids"]
    assert ids == [SPECIAL_IDS["<bos>"], *Encoder.load(str(source)).encode(pa.array([text], pa.large_string()))[0]]
    assert exported.decode(ids, skip_special_tokens=True) == text
    assert exported("☃<mask>")["input_ids"][1:] == [SPECIAL_IDS["<unk>"], SPECIAL_IDS["<mask>"]]
