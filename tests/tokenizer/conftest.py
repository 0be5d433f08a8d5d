"""A small vocabulary trained on Python's standard library, texts to try it on, and GPT-2's published files if
GRISTMILL_DATA has them.
"""

import json
import os
import sysconfig
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import train_byte_bpe

STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
HARD_TEXTS = [
    "",
    " ",
    "\n\n\r\n \t  x",
    "\x00NUL\x00 and \x1b[31mred\x1b[0m \x7f",
    "שלום עולם، مرحبا بالعالم \u202eright to left\u202c",
    "🙂🙃 👩‍👩‍👧‍👦 🇰🇷 e\u0301 é ﬁ",
    "한국어 문장입니다. 中文句子。日本語の文。",
    "it's IT'S 12345678 3.14159 don't\u2019s",
    "if x <= 3:\n        return  {'a': [1, 2]}  # 注\n\n\n",
    "\U0010ffff \ufeff\ufffd \u200b",
]


@pytest.fixture(scope="session")
def prose() -> list[str]:
    """Return the source code of 25 modules of Python's standard library: real text that every test machine
    has.
    """
    files = sorted(STANDARD_LIBRARY.glob("*.py"))[:25]
    return [file.read_text(encoding="utf-8") for file in files]


def train(pattern: str, prose: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp(pattern) / "tokenizer.json"
    file.write_bytes(train_byte_bpe(prose, 2000, pattern=pattern))
    return str(file)


@pytest.fixture(scope="session")
def trained(prose, tmp_path_factory) -> str:
    return train("llama3", prose, tmp_path_factory)


@pytest.fixture(scope="session", params=["llama3", "gpt2"])
def any_trained(request, trained, prose, tmp_path_factory) -> str:
    return trained if request.param == "llama3" else train(request.param, prose, tmp_path_factory)


@pytest.fixture(scope="session")
def encoder(trained) -> Encoder:
    return Encoder.load(trained)


@pytest.fixture(scope="session")
def documents(prose) -> pa.LargeStringArray:
    return pa.array([*HARD_TEXTS, *prose[:5], *HARD_TEXTS], pa.large_string())


@pytest.fixture(scope="session")
def gpt2_files() -> Path:
    root = os.environ.get("GRISTMILL_DATA")
    folder = Path(root or "") / "models" / "gpt2"
    if root is None or not folder.is_dir():
        pytest.skip(
            "GRISTMILL_DATA is unset or has no models/gpt2: GPT-2's published vocabulary is not part of the project"
        )
    return folder


@pytest.fixture
def edited(trained, tmp_path):
    def write(**changes: Any) -> str:
        data = {**json.loads(Path(trained).read_text(encoding="utf-8")), **changes}
        file = tmp_path / "tokenizer.json"
        file.write_text(json.dumps(data), encoding="utf-8")
        return str(file)

    return write
