"""The entities of the `pii` stage, and the recognizers of those that patterns can find. The recognizers are
set up as in the reference configuration (pii.py). Most ship with Presidio; the others are our own and use
Presidio's class PatternRecognizer.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

from pipelines.stages.pii.identity_documents import DATE_OF_BIRTH, DRIVER_LICENSE, ORGANIZATION, PASSPORT
from pipelines.stages.pii.postal_addresses import STREET_ADDRESS
from pipelines.stages.pii.secret_values import REGULAR, SECRET

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
OWN = {"URL_CREDENTIALS": URL_CREDENTIALS, "API_KEY": API_KEY, "PRIVATE_KEY": PRIVATE_KEY, "SECRET": SECRET}
# Presidio's score of an e-mail address, which credentials resemble: then the longer match wins
_OWN_SCORE = 1.0

# Read whole texts: of Presidio's default registry, and ours with their patterns and scores.
_SHIPPED_WHOLE = {
    "US_BANK_NUMBER": "UsBankRecognizer",
    "US_DRIVER_LICENSE": "UsLicenseRecognizer",
    "US_PASSPORT": "UsPassportRecognizer",
    "MEDICAL_LICENSE": "MedicalLicenseRecognizer",
    "UUID": "UuidRecognizer",
    "URL": "UrlRecognizer",
    "DATE_TIME": "DateRecognizer",
}
_OWN_WHOLE = {
    "STREET_ADDRESS": STREET_ADDRESS,
    "DATE_OF_BIRTH": {DATE_OF_BIRTH: 0.9},
    "PASSPORT": {PASSPORT: 0.8},
    "DRIVER_LICENSE": {DRIVER_LICENSE: 0.8},
    "ORGANIZATION": {ORGANIZATION: 0.6},
}
WHOLE_TEXT = (*_SHIPPED_WHOLE, *_OWN_WHOLE)

PHONE_REGIONS = ("US", "GB", "DE", "FR", "IL", "IN", "CA", "BR")
"""PhoneRecognizer.DEFAULT_SUPPORTED_REGIONS of presidio-analyzer 2.2.366."""
PATTERN_ENTITIES = (*SHIPPED, *OWN, *WHOLE_TEXT)
NER_ENTITIES = ("PERSON", "LOCATION", "NRP")
"""Entities that only a named-entity model finds. Such a model also finds ORGANIZATION and DATE_TIME."""
MODEL_ENTITIES = (*NER_ENTITIES, "ORGANIZATION", "DATE_TIME")

Level = Literal["", "contact", "identity", "everything"]
CONTACT = ("EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE", "US_SSN", "IP_ADDRESS")
LEVELS: dict[str, tuple[str, ...]] = {
    "contact": CONTACT,
    "identity": (*CONTACT, "PERSON", "LOCATION", *_OWN_WHOLE),
    "everything": (*PATTERN_ENTITIES, *NER_ENTITIES),
}
"""The entities of each level."""


def load_recognizers(entities: tuple[str, ...], phone_regions: tuple[str, ...]) -> dict[str, Any]:
    """Return a mapping from each of `entities`, which must be in PATTERN_ENTITIES, to its recognizer in the
    reference configuration.

    This affects the whole process: it silences Presidio's logger, which quotes text, and keeps tldextract
    from downloading a suffix list or writing a cache.
    """
    predefined = presidio()
    from regex import ASCII, MULTILINE

    recognizers = {}
    for entity in entities:
        if own := OWN.get(entity):
            recognizers[entity] = _own_recognizer(entity, {own: _OWN_SCORE}, int(ASCII))
        elif patterns := _OWN_WHOLE.get(entity):
            recognizers[entity] = _own_recognizer(entity, patterns, int(MULTILINE))
        else:
            knobs = {"supported_regions": phone_regions} if entity == "PHONE_NUMBER" else {}
            recognizers[entity] = getattr(predefined, (SHIPPED | _SHIPPED_WHOLE)[entity])(**knobs)
    return recognizers


def _own_recognizer(entity: str, patterns: Mapping[str, float], flags: int) -> Any:
    from presidio_analyzer import Pattern, PatternRecognizer

    named = [Pattern(entity, pattern, score) for pattern, score in patterns.items()]
    recognizer = PatternRecognizer(entity, patterns=named, global_regex_flags=flags)
    if too_regular := REGULAR.get(entity):
        recognizer.invalidate_result = too_regular
    return recognizer


@cache  # building the tree of the suffix list takes 20 ms
def presidio() -> Any:
    """Import and return Presidio's module of predefined recognizers. Presidio's logger and tldextract are
    changed as `load_recognizers` says.
    """
    logging.getLogger("presidio-analyzer").disabled = True
    import tldextract.tldextract

    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())
    with block_imports("torch", "transformers"):
        from presidio_analyzer import predefined_recognizers
    return predefined_recognizers


@contextmanager
def block_imports(*modules: str) -> Iterator[None]:
    """Make imports of these modules fail inside the block, unless they are already loaded.

    Importing Presidio takes 13 seconds and 430 MB with torch and transformers, and 2.3 seconds and 110 MB
    without them.
    """
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
