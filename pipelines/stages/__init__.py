"""The registry of stages: `STAGES` maps each YAML name to the class of its stage."""

from pipelines.contracts.stage import CorpusStage, PartStage
from pipelines.stages.decide.c4_lines import C4Lines
from pipelines.stages.decide.exclude import Exclude
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.mojibake import Mojibake
from pipelines.stages.decide.pareto_sampling import ParetoSampling
from pipelines.stages.decide.patterns import Patterns
from pipelines.stages.decide.refinedweb_lines import RefinedwebLines
from pipelines.stages.decide.sample import UniformSample
from pipelines.stages.dedup.dedup_exact import DedupExact
from pipelines.stages.dedup.dedup_held_out import DedupHeldOut
from pipelines.stages.dedup.dedup_minhash import DedupMinhash
from pipelines.stages.dedup.dedup_spans import DedupSpans
from pipelines.stages.dedup.dedup_substrings import DedupSubstrings
from pipelines.stages.dedup.dedup_url import DedupUrl
from pipelines.stages.dedup.semantic.dedup_semantic import DedupSemantic
from pipelines.stages.materialise.learn_tokenizer import LearnTokenizer
from pipelines.stages.materialise.shards import Shards
from pipelines.stages.measure.decontaminate import Decontaminate
from pipelines.stages.measure.language import Language
from pipelines.stages.measure.minhash_signatures import MinhashSignatures
from pipelines.stages.measure.peer_signals import PeerSignals
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.measure.record_fields import RecordFields
from pipelines.stages.measure.reservations import Reservations
from pipelines.stages.measure.text_hash import TextHash
from pipelines.stages.measure.topics.topics import Topics
from pipelines.stages.measure.url_rules import UrlRules
from pipelines.stages.measure.word_list import WordList
from pipelines.stages.pii.pii import Pii
from pipelines.stages.score.classifier import Classifier
from pipelines.stages.score.embedding_classifier import EmbeddingClassifier
from pipelines.stages.score.perplexity import Perplexity
from pipelines.stages.score.score import ColumnScore
from pipelines.stages.score.transformer_classifier import TransformerClassifier
from pipelines.stages.score.transformer_embeddings import TransformerEmbeddings

STAGES: dict[str, type[PartStage] | type[CorpusStage]] = {
    "c4_lines": C4Lines,
    "classifier": Classifier,
    "decontaminate": Decontaminate,
    "dedup_exact": DedupExact,
    "dedup_held_out": DedupHeldOut,
    "dedup_minhash": DedupMinhash,
    "dedup_semantic": DedupSemantic,
    "dedup_spans": DedupSpans,
    "dedup_substrings": DedupSubstrings,
    "dedup_url": DedupUrl,
    "embedding_classifier": EmbeddingClassifier,
    "exclude": Exclude,
    "filter": Filter,
    "language": Language,
    "learn_tokenizer": LearnTokenizer,
    "minhash_signatures": MinhashSignatures,
    "mojibake": Mojibake,
    "pareto_sampling": ParetoSampling,
    "patterns": Patterns,
    "peer_signals": PeerSignals,
    "perplexity": Perplexity,
    "pii": Pii,
    "quality_signals": QualitySignals,
    "record_fields": RecordFields,
    "refinedweb_lines": RefinedwebLines,
    "reservations": Reservations,
    "sample": UniformSample,
    "score": ColumnScore,
    "shards": Shards,
    "text_hash": TextHash,
    "topics": Topics,
    "transformer_classifier": TransformerClassifier,
    "transformer_embeddings": TransformerEmbeddings,
    "url_rules": UrlRules,
    "word_list": WordList,
}
