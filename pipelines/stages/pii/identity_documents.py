"""Patterns of dates of birth, passport numbers, driving licence numbers and names of organisations. Dates and
numbers are matched only after words that name them, such as "passport", and the match is the date or number
alone. Organisations are matched by the legal form at the end of their name, such as "GmbH".
"""

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?"
    r"|dec(?:ember)?)\.?"
)
_DATE = (
    rf"(?:\d{{1,2}}(?:st|nd|rd|th)?[ ](?:of[ ])?{_MONTH},?[ ]\d{{4}}|{_MONTH}[ ]\d{{1,2}}(?:st|nd|rd|th)?,?[ ]\d{{4}}"
    r"|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.][ ]?\d{1,2}[-/.][ ]?(?:\d{4}|\d{2}))(?!\w)"
)
DATE_OF_BIRTH = (
    r"(?i:(?<!\w)(?:d\.?o\.?b\.?|date[ ]of[ ]birth|birth[ ]?da(?:te|y)|born(?:[ ]on)?|geboren(?:[ ]am)?|geburtsdatum"
    r"|n[\u00e9e]e?[ ]le|date[ ]de[ ]naissance|fecha[ ]de[ ]nacimiento|nacid[oa][ ]el|nat[oa][ ]il|data[ ]di[ ]nascita)"
    rf"(?:[ ](?:is|was))?[ \t]{{0,4}}[:=-]?[ \t]{{0,4}}[(]?\K{_DATE})"
)
_OF_NUMBER = (
    r"(?:[ ](?:numbers?|no\.?|nr\.?|num\.?|id|card))?(?:[ ](?:is|was))?[ \t]{0,3}[:#=-]?[ \t]{0,3}#?"
    r"\K(?=[A-Z0-9 -]{0,8}[0-9])(?-i:"
)
PASSPORT = rf"(?i:(?<!\w)(?:passport|reisepass|passeport|pasaporte|passaporto){_OF_NUMBER}[A-Z]{{0,3}}[0-9]{{6,9}}[A-Z]?))(?!\w)"
DRIVER_LICENSE = (
    r"(?i:(?<!\w)(?:driv(?:er|ing)(?:'?s)?[ -]?licen[cs]e|dri?vr[ ]lic|f\u00fchrerschein|permis[ ]de[ ]conduire|"
    rf"(?:carn\u00e9|licencia|permiso)[ ]de[ ]conducir|patente[ ]di[ ]guida){_OF_NUMBER}"
    r"[A-Z0-9]{1,6}(?:[ -]?[A-Z0-9]{2,7}){1,4}))"
    r"(?!\w)"
)
# A name of capitalised words before the form of a company.
ORGANIZATION = (
    r"(?<![\p{L}\p{N}])(?!(?:The|A|An|At|In|Of|By|For|From|With)[ ])\p{Lu}[\p{L}\p{N}&'.-]*"
    r"(?:,?[ ](?:(?:&|and|of|for|de|und)[ ])?\p{Lu}[\p{L}\p{N}&'.-]*){0,4}"
    r",?[ ](?:Inc|LLC|LLP|PLC|plc|Ltd|Limited|Corp|Corporation|GmbH|AG|KG|SE|S\.A|S\.p\.A|S\.r\.l|B\.V"
    r"|N\.V|Oy|AB|A/S|Pty|KGaA)(?![\p{L}\p{N}])\.?"
)
