"""Names found by a Hugging Face token classifier, compared with the pipeline of transformers. The models are
tiny and random, and nothing is downloaded.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from gristmill.config import parse
from gristmill.errors import UserError
from pipelines.planning.corpus import load_corpus_config
from pipelines.stages.pii.name_finders import NameFinder, model_versions
from pipelines.stages.pii.pii import Pii
from pipelines.stages.pii.token_classifier import TokenClassifier
from tests.pipelines.stages.pii.test_pii import annotated

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC")
ENTITIES = ("PERSON", "LOCATION", "ORGANIZATION")
NAMES = {"PER": "PERSON", "LOC": "LOCATION", "ORG": "ORGANIZATION"}
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "ann",
    "lee",
    "mill",
    "##er",
    "##stone",
    "köln",
    "by",
    "the",
    "river",
    "##s",
    "a",
    ".",
    "(",
    ")",
]
TEXTS = (
    *("Ann Miller (Lee) by the rivers.", "", " \n ", "Millstone", "a " * 40, "Köln. " * 7 + "Ünknown 北京 Annlee"),
    "the millers by Köln, a river " * 30 + "Ann Lee.",
)


def save(folder: Path, marked: bool) -> Path:
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast

    kind = models.WordPiece if marked else models.WordLevel
    tokenizer = Tokenizer(kind({piece: place for place, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(7)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {label: place for place, label in enumerate(LABELS)}}
    config = BertConfig(vocab_size=len(PIECES), max_position_embeddings=48, initializer_range=0.9, **shape, **labels)
    BertForTokenClassification(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["first", "simple"])
def model(request, tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"), marked=request.param == "first"), request.param


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"), marked=True)


def test_spans_are_those_of_transformers_in_windows_that_overlap(model):
    import transformers

    folder, strategy = model
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, model_max_length=48)
    peer = transformers.pipeline(
        "token-classification",
        model=transformers.AutoModelForTokenClassification.from_pretrained(folder),
        tokenizer=tokenizer,
        aggregation_strategy=strategy,
        stride=12,
        device="cpu",
    )
    found = list(NameFinder(str(folder), ENTITIES).find(TEXTS))
    for text, names in zip(TEXTS, found, strict=True):
        theirs = [span for span in peer(text) if span["entity_group"] in NAMES] if text.strip() else []
        assert [(n.start, n.end, n.entity) for n in names] == [
            (span["start"], span["end"], NAMES[span["entity_group"]]) for span in theirs
        ]
        assert [n.score for n in names] == pytest.approx([float(span["score"]) for span in theirs], abs=1e-5)
    assert {name.entity for names in found for name in names} >= {"PERSON"}
    assert found[-1][-1].end > 48 * 10  # the end of the long text was read


def test_what_is_found_in_a_text_does_not_depend_on_the_others(directory):
    classifier = TokenClassifier(str(directory), ENTITIES)
    assert classifier.read(TEXTS) == [classifier.read([text])[0] for text in TEXTS]


def test_only_entities_that_are_searched_for_are_found(directory):
    everything = TokenClassifier(str(directory), ENTITIES).read(TEXTS)
    persons = TokenClassifier(str(directory), ("PERSON",)).read(TEXTS)
    assert persons == [[name for name in names if name[2] == "PERSON"] for names in everything]
    assert persons != everything


def test_names_are_edits_at_their_bytes(directory):
    text = "Köln. " * 7 + "Ann Miller"
    names = TokenClassifier(str(directory), ENTITIES).read([text])[0]
    expected, at = "", 0
    for start, end, entity, _ in names:
        expected, at = expected + text[at:start] + f"<{entity}>", end
    assert names
    edited, _ = annotated(text, entities=ENTITIES, ner_model=str(directory), score_threshold=0.0)
    assert edited == expected + text[at:]


def test_the_files_of_the_model_are_part_of_the_step(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "m")
    before = model_versions(str(tmp_path / "m"))
    assert {"torch", "transformers", "ner_model xxh3_128"} == set(before)
    (tmp_path / "m" / "tokenizer_config.json").write_text("{}")
    assert model_versions(str(tmp_path / "m")) != before


def test_the_example_of_the_page(directory, tmp_path, monkeypatch):
    page = Path(__file__).parents[4] / "docs/judgement.md"
    (example,) = re.findall(r"```yaml\n(name: posts\n.*?)```", page.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(directory, "models/ner")
    Path("corpus.yaml").write_text(example)
    (stage,) = [step.stage for step in load_corpus_config(Path("corpus.yaml")).steps if step.name == "pii"]
    assert stage.ner_model == "models/ner"
    assert "models/ner: a neural network" in stage.notice()


def without(name):
    return lambda folder: (folder / name).unlink()


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def labelled(labels):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"id2label": labels}))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("config.json"), "has no config.json; expected a directory that spaCy"),
        (without("model.safetensors"), "has no model.safetensors; expected"),
        (pickled, "pytorch_model.bin is a pickle, which is not read: save the model as safetensors"),
        (without("tokenizer.json"), "has no tokenizer.json; expected a directory that spaCy saved"),
        (labelled(None), "config.json has no labels (id2label)"),
        (labelled({"0": "LABEL_0"}), "config.json has the label 'LABEL_0'; expected PER, PERS, PERSON, LOC,"),
        (labelled({"0": "O", "1": "B-DATE"}), "has labels of DATE_TIME, and none of these is searched for"),
    ],
)
def test_directories_that_cannot_be_read(tmp_path, change, message):
    folder = tmp_path / "m"
    folder.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (folder / name).touch()
    (folder / "config.json").write_text(json.dumps({"id2label": dict(enumerate(LABELS))}))
    parse(Pii, {"entities": ["PERSON"], "ner_model": str(folder)}, where="corpus.yaml")
    change(folder)
    with pytest.raises(UserError) as error:
        parse(Pii, {"entities": ["PERSON"], "ner_model": str(folder)}, where="corpus.yaml")
    assert f"ner_model: {folder}" in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_damaged_files_are_one_clear_line(directory, tmp_path, name):
    folder = tmp_path / "m"
    shutil.copytree(directory, folder)
    (folder / name).write_bytes(b"{")
    with pytest.raises(UserError, match=r"^pii: ner_model '.*' cannot be loaded \(.*\)$"):
        TokenClassifier(str(folder), ENTITIES)


def test_weights_that_are_missing_are_not_drawn(directory, tmp_path):
    import transformers

    folder = tmp_path / "m"
    shutil.copytree(directory, folder)
    transformers.AutoModel.from_pretrained(folder).save_pretrained(folder)
    with pytest.raises(UserError, match=r"model.safetensors lacks 2 weights of the model, such as classifier.bias"):
        TokenClassifier(str(folder), ENTITIES)
