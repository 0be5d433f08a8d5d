"""Patterns of postal addresses: streets with a number, corners of two streets, PO boxes, units, addresses of
armed forces, towns with a state and a postal code, and British and Canadian postal codes.

A street needs a number and evidence that it is a street: a word for a street before, after or at the end of
its name, a unit after it (`Suite 5`), a postal code with a town, or a phrase that introduces an address. Only
a corner (`corner of A and B`) needs no number. Words for streets are those of USPS Publication 28 (appendix
C1) and of the languages named in the comments below. After a street, the match continues over the other
elements of the address: units, town, region, country and postal code, on one line or several. Names of
streets and towns must begin with a capital.
"""

_NOT_YEAR = r"(?!(?:1[5-9]|20)\d\d\b)"
_BEGIN = r"(?<![\p{L}\p{N}_.,/$€£#+-])"
_NUMBER = r"\d{1,5}(?:[-/\u2013]\d{1,4})?(?:[A-Za-z]\b)?"
_AFTER = (
    rf"{_NOT_YEAR}\d{{1,4}}(?:[-/\u2013]\d{{1,4}})?(?:\s?[A-Za-z]\b(?!['\u2019]))?(?![\p{{L}}\p{{N}}])(?![.,:%]\d)\.?+"
)
_WORD = r"\p{Lu}[\p{L}\p{M}'\u2019-]{0,40}+\.?"  # bounded: long hyphenated text would cost its square
_SMALL = (
    r"(?:d[aeou]s?|de[ilnr]|degli|del(?:l[aeo]|los)|di|des|l[aeo]s?|al|van|von|den|te[nr]|zu[mr]?"
    r"|am|an|of|the|y|e|i|u|v|z|nad|pod|op|bij)"
)
_NAME = rf"{_WORD}(?:[ ](?:{_SMALL}[ ]){{0,2}}{_WORD}){{0,3}}"
_MONTH = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?"
    r"|Dec(?:ember)?)\b"
)
_NOT_DATE = (
    rf"(?!(?:\p{{L}}+[ ])?{_MONTH}|(?:On|In|At|From|Since|Until|By|Of|And|The|For|To|But|Vol|No"
    r"|Chapter|Section|Table|Figure|Page)\b)"
)
_UNIT = (
    r"(?i:apt|apartment|suite|ste|unit|flat|room|rm|floor|bldg|building|stair|tür|etage|piso|depto|dept|int(?:erno)?|scala)"
    r"\.?[ ]?(?:#|no\.?[ ]?)?(?:\d{1,5}[A-Za-z]?|[A-Z]\d{0,4})\b"
)
# A line end or an empty line, with the marks of quotations before the next line.
_LINE = r"[ \t]*\n(?:[ \t]*\n)?[ \t>?|*]*,?[ \t]*"
_SEPARATOR = rf"(?:,{_LINE}|{_LINE}|,[ \t]*|[ \t]+)"
_TOWN = rf"{_WORD}(?:[ '-](?:{_SMALL}[ ])?{_WORD}){{0,4}}(?:[ ]\({_WORD}\))?"
_REGION = r"(?!(?:and|or|in|of|the|on|to|at|by|for|is|was)\b)(?:\p{L}{2,3}|\d{2})\b"
_POSTCODE = (
    r"(?:(?:[A-Z]{1,2}-)?\d{4,6}(?:-\d{3,4})?|\d{3}[ ]\d{2}|[A-Z]\d[A-Z][ ]?\d[A-Z]\d|[A-Z]{1,2}\d[A-Z\d]?[ ]\d[A-Z]{2}"
    r"|\d{4}[ ][A-Z]{2})(?![\p{L}\p{N}-])"
)
_PLACES = (
    # town, region or country, then the postal code; or the postal code, then the town
    rf"(?:(?:{_SEPARATOR}(?:{_TOWN}|{_REGION})){{1,3}}{_SEPARATOR}{_NOT_YEAR}{_POSTCODE}"
    rf"|{_SEPARATOR}{_POSTCODE}[ ]{_TOWN}(?:,[ ]{_TOWN})?)"
)
_UNITS = rf"(?:{_SEPARATOR}{_UNIT})"
# After a unit, capitals are the town; without one, they are after a comma or with a postal code.
_TAIL = rf"(?:{_UNITS}{{1,2}}(?:{_PLACES}|(?:{_SEPARATOR}{_TOWN}){{1,2}})?|{_PLACES}|(?:,[ ]{_TOWN}){{1,2}})?"
_EVIDENT_TAIL = rf"(?:{_UNITS}{{1,2}}(?:{_PLACES}|(?:{_SEPARATOR}{_TOWN}){{1,2}})?|{_PLACES})"

# Words after the name, as written and in the plural. Only after the first ones may the number look like a year,
# and the last ones need more evidence.
_PLAIN = r"(?:Street|St|Road|Rd|Avenue|Ave|Boulevard|Blvd|Drive|Lane|Ln|Highway|Hwy)s?\b\.?+"
_ENGLISH = (
    r"(?:Street|St|Road|Rd|Avenue|Ave?|Boulevard|Blvd|Drive|Dr|Lane|Ln|Court|Ct|Place|Pl|Square|Sq|Terrace|Ter|Crescent|Cres"
    r"|Close|Way|Highway|Hwy|Parkway|Pkwy|Circle|Cir|Trail|Trl|Turnpike|Tpke|Alley|Mews|Expressway|Freeway|Quay|Esplanade"
    r"|Parade|Row|Walk|Plaza|Gardens|Grove|Extension|Crossing|Causeway|Throughway|Underpass|Overpass|Bypass|Gateway|Loop|Pike"
    r"|Route|Path|Pass|Rise)s?\b\.?+"
)
_ENGLISH_PLACES = (
    r"(?:Bend|Bluff|Branch|Bridge|Brook|Burg|Camp|Canyon|Cape|Center|Centre|Cliff|Club|Common|Corner|Course|Cove|Creek|Crest"
    r"|Curve|Dale|Dam|Divide|Estate|Fall|Ferry|Field|Flat|Ford|Forest|Forge|Fork|Fort|Garden|Glen|Green|Harbor|Haven|Height"
    r"|Hill|Hollow|Inlet|Island|Isle|Junction|Key|Knoll|Lake|Landing|Light|Loaf|Lock|Lodge|Mall|Manor|Meadow|Mill|Mission"
    r"|Motorway|Mount|Mountain|Neck|Orchard|Oval|Park|Passage|Pine|Plain|Point|Port|Prairie|Radial|Ramp|Ranch|Rapid|Rest|Ridge"
    r"|River|Shoal|Shore|Skyway|Spring|Spur|Station|Stream|Summit|Trace|Track|Tunnel|Union|Valley|Viaduct|View|Village|Ville"
    r"|Vista|Well)s?\b"
)
# Romance, Polish, Russian and Indonesian words before the name.
_BEFORE = (
    r"(?:Rua|R\u00faa|Avenida|Avda\.?|Av\.?|Calle|C/|Plaza|Pra\u00e7a|Praza|Paseo|Camino|Carrer|Travessa|Alameda|Largo|Estrada"
    r"|Via|Viale|Vicolo|Piazza|Piazzale|Corso|Strada(?:[ ]\p{Lu}\p{L}+)?|Contrada|[Rr]ue|[Aa]venue|[Bb]oulevard|[Qq]uai|[Cc]hemin"
    r"|[Ii]mpasse|All\u00e9e|ul\.|al\.|os\.|pl\.|ulica|ulitsa|\u0443\u043b\.|\u0443\u043b\u0438\u0446\u0430|Jalan|Jl\.)"
)
# German, Dutch, Danish, Norwegian, Swedish, Finnish, Icelandic, Estonian and Czech ends of a name.
_ENDING = (
    r"(?:stra(?:sse|\u00dfe|at)|str\.|gasse|weg|platz|allee|damm|ufer|chaussee|graben|br\u00fccke|laan|gracht|singel|dijk|plein"
    r"|vej|(?<![Bb]ri|[Rr]ene)gade|str\u00e6de|v\u00e6nget|v\u00e4g(?:en)?|gatan?|gr\u00e4nd|stigen|stien|torget|ve(?:g|i)en"
    r"|katu|kuja|polku|(?<=\p{L}{4})tie|str\u00e6ti|braut|vegur|t\u00e4nav|sk\u00e1|ck\u00e1|\u00e9ho)"
)
# The same as words of their own, with the Hungarian ones.
_OWN_WORD = (
    r"(?:Stra(?:sse|\u00dfe|at)|Str\.|Gasse|Weg|Platz|Allee|Ring|Laan|Plein|Vej|vej|Gade|gade|gate|gata|gatan|vei|veg|tee|tn\.?"
    r"|terrasse|u\.|utca|\u00fat(?:ja)?|[Tt]rg|t\u00e9r|krt\.?|k\u00f6r\u00fat|bundesstrasse|Bundesstrasse)"
)
_NUMBERS = rf"(?:{_NUMBER}[ ]){{0,2}}"
_ROAD = rf"{_WORD}(?:[ ](?:{_SMALL}[ ])?{_WORD}){{0,2}}"  # shorter than any name: 3 words

_STREET = (
    rf"{_BEGIN}(?:(?:{_NUMBER},?[ ]){{1,2}}{_NAME}[ ]{_PLAIN}|{_NOT_YEAR}(?:{_NUMBER},?[ ]){{1,2}}{_NAME}[ ]{_ENGLISH})"
    rf"(?:[ ](?:[NSEW]|North|South|East|West|\d{{1,4}})\b)?{_TAIL}"
)
_STREET_PLACE = rf"{_BEGIN}{_NOT_YEAR}(?:{_NUMBER},?[ ]){{1,2}}{_NAME}[ ]{_ENGLISH_PLACES}{_EVIDENT_TAIL}"
_STREET_BEFORE = (
    rf"{_BEGIN}{_NUMBERS}{_BEFORE}[ ]?(?:{_SMALL}[ ])*+(?:[dl]['\u2019])?{_NAME},?[ ](?:n\u00ba[ ])?{_AFTER}{_TAIL}"
    rf"|{_BEGIN}{_NOT_YEAR}(?:{_NUMBER},?[ ]){{1,2}}{_BEFORE}[ ](?:{_SMALL}[ ])*+(?:[dl]['\u2019])?{_NAME}{_TAIL}"
)
_STREET_ENDING = rf"{_BEGIN}{_NUMBERS}(?:{_WORD}[ ]){{0,2}}\p{{Lu}}[\p{{L}}-]*?{_ENDING}[ ]{_AFTER}{_TAIL}"
_STREET_WORD = rf"{_BEGIN}{_NUMBERS}{_ROAD}[ ]{_OWN_WORD}[ ]{_AFTER}{_TAIL}"
_STREET_EVIDENT = (
    rf"{_BEGIN}{_NUMBERS}{_NOT_DATE}{_NAME}[ ]{_AFTER}(?![ ]{_MONTH})"
    rf"(?:[ ]{_NAME}(?={_SEPARATOR}{_UNIT}))?{_EVIDENT_TAIL}"
)
_CUE = (
    r"(?i:\baddress(?:es)?(?:[ ](?:to|is|was|of|with)\b|:)[^\n\d]{0,40}|\b(?:lives?|living|lived|resid(?:es?|ing)"
    r"|located|situated"
    r"|offices?)[ ](?:is[ ]|are[ ])?(?:at|on|in)[ ]|\b(?:sent|send|ship(?:ped)?"
    r"|deliver(?:ed)?|mail(?:ed)?|return|moved)[ ](?:it[ ])?to[ ])\s*\K"
)
_STREET_INTRODUCED = (
    rf"{_CUE}(?:{_NUMBER}[ ]){{1,2}}{_NAME}[ ]{_AFTER}{_TAIL}|{_CUE}{_NAME}[ ]{_AFTER}(?=\.?\s*$){_TAIL}"
)
_SIDE = rf"{_NUMBERS}(?:{_BEFORE}[ ])?(?:{_SMALL}[ ])*+{_NAME}(?:[ ]{_AFTER})?"
_CORNER = rf"\b(?:[Tt]he[ ])?[Cc]orner[ ]of[ ]{_SIDE}[ ](?:and|&)[ ]{_SIDE}"
_POST_BOX = (
    r"(?i:\b(?:P\.?[ ]?O\.?[ ]?Box|Post(?:al)?[ ]?(?:Office[ ])?Box|Postfach|Postbus|Postboks|Boks|Apartado(?:[ ]de[ ]correos)?"
    rf"|Casella[ ]postale|Caixa[ ]postal|Skrytka[ ]pocztowa|Locked[ ]Bag|Private[ ]Bag)[ ](?:no\.?[ ]?)?[A-Z]?\d{{1,6}}\b){_TAIL}"
)
# Addresses of the armed forces: Postal Service Center, unit or ship, then APO, FPO or DPO and AA, AE or AP
# (USPS Publication 28, section 225).
_MILITARY = (
    r"(?i:\b(?:(?:PSC|CMR|Unit)[ ]\d{1,5},?[ ]Box[ ]\d{1,5}|US(?:S|NS|NV|CGC|AV)[ ][\p{L}' -]{2,40})"
    rf"(?:,{_LINE}|{_LINE}|,?[ ])(?:APO|FPO|DPO),?[ ]A[AEP][ ]\d{{5}}(?:-\d{{4}})?)"
)
_UNIT_ALONE = (
    r"(?<![\p{L}\p{N}_])(?i:apt|apartment|suite|ste|flat)\.?[ ](?:#|no\.?[ ]?)?(?:\d{1,5}[A-Za-z]?|[A-Z]\d{1,4})\b"
)
_STATES = (
    r"(?:A[KLRZ]|C[AOT]|D[CE]|FL|GA|HI|I[ADLN]|K[SY]|LA|M[ADEINOST]|N[CDEHJMVY]|O[HKR]|PA|RI|S[CD]|T[NX]|UT|V[AT]|W[AIVY]"
    r"|AB|BC|MB|NB|NL|NS|NT|NU|ON|PE|QC|SK|YT|NSW|VIC|QLD|TAS|ACT)"
)
_TOWN_CODE = (
    rf"(?<![\p{{L}}\p{{N}}]){_TOWN}(?:,[ ]?|[ ]|,?{_LINE}){_STATES},?(?:[ ]|{_LINE})"
    r"(?:\d{5}(?:-\d{4})?|[A-Z]\d[A-Z][ ]?\d[A-Z]\d|\d{4})(?![\p{L}\p{N}-])"
)
# Royal Mail's form; Canada Post's form without the letters it does not use.
_CODE_ALONE = (
    r"(?<![\p{L}\p{N}_-])(?:(?:[A-PR-UWYZ][A-HK-Y]?\d[A-HJKPSTUW\d]?)[ ]\d[ABD-HJLNP-UW-Z]{2}"
    r"|[ABCEGHJ-NPRSTVXY]\d[ABCEGHJ-NPRSTV-Z][ ]\d[ABCEGHJ-NPRSTV-Z]\d)(?![\p{L}\p{N}_-])"
)


STREET_ADDRESS = {
    _STREET: 0.7,
    _STREET_PLACE: 0.6,
    _STREET_BEFORE: 0.6,
    _STREET_ENDING: 0.7,
    _STREET_WORD: 0.6,
    _STREET_EVIDENT: 0.5,
    _STREET_INTRODUCED: 0.5,
    _CORNER: 0.6,
    _POST_BOX: 0.8,
    _MILITARY: 0.9,
    _UNIT_ALONE: 0.4,
    _TOWN_CODE: 0.7,
    _CODE_ALONE: 0.5,
}
"""Patterns for the module `regex`, each with its score."""
