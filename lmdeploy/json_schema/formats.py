"""``format`` of strings: the formats of JSON Schema 2020-12 as languages.

Each is of strings that have the format, if not of all: what a name or an address may be in rare cases is left out. A
format that the standard does not know is an annotation.
"""

from __future__ import annotations

from functools import cache

from lmdeploy.json_schema.languages import Language
from lmdeploy.json_schema.patterns import language_of

_YEAR = r"([1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_LEAP_YEAR = r"(\d{2}(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26]|0[48])00)"
_DAY_OF_YEAR = r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_DATE = f"({_YEAR}-{_DAY_OF_YEAR}|{_LEAP_YEAR}-02-29)"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
# Every character that is counted costs time when a grammar is compiled.
_LABEL = r"[A-Za-z0-9]{1,12}(-[A-Za-z0-9]{1,12})?"
_HOSTNAME = rf"{_LABEL}(\.{_LABEL}){{0,3}}"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_EMAIL = rf"{_ATOM}{{1,24}}(\.{_ATOM}{{1,16}})?@{_HOSTNAME}"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d{2}|[1-9]?\d)"
_IPV4 = rf"({_BYTE}\.){{3}}{_BYTE}"
_GROUP = r"[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [
        rf"({_GROUP}:){{7}}{_GROUP}",
        rf"({_GROUP}:){{6}}{_IPV4}",
        "::",
        rf"({_GROUP}:){{1,7}}:",
        *(rf"({_GROUP}:){{1,{7 - after}}}(:{_GROUP}){{{after}}}" for after in range(1, 7)),
        rf"::({_GROUP}:){{0,6}}{_GROUP}",
        rf"::({_GROUP}:){{0,5}}{_IPV4}",
    ]
)
_DURATION = (
    r"P((\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)(T(\d+S|\d+M(\d+S)?|\d+H(\d+M(\d+S)?)?))?"
    r"|T(\d+S|\d+M(\d+S)?|\d+H(\d+M(\d+S)?)?)|\d+W)"
)
_UUID = r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
_PCHAR = r"([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_REST = rf"(\?({_PCHAR}|[/?])*)?(#({_PCHAR}|[/?])*)?"
_AUTHORITY = r"([A-Za-z0-9._~-]+@)?[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:\d{1,4})?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(//{_AUTHORITY}(/{_PCHAR}*)*|/?{_PCHAR}+(/{_PCHAR}*)*){_REST}"
_URI_REFERENCE = rf"{_URI}|/{_PCHAR}+(/{_PCHAR}*)*{_REST}|[A-Za-z0-9._~-]+(/{_PCHAR}*)*{_REST}"
# One that ends, for where a length is bounded.
_SHORT_URI = (
    r"[A-Za-z][A-Za-z0-9+.-]{0,11}://[A-Za-z0-9][A-Za-z0-9.-]{0,61}[A-Za-z0-9](/[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,128})?"
)
_POINTER = r"(/([^~/]|~[01])*)*"

_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": _UUID,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri-reference": _URI_REFERENCE,
    "uri-template": _URI_REFERENCE,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
}
REFUSED = ("regex",)
"""Formats of the standard that are not enforced."""


@cache
def language_of_format(name: str) -> Language | None:
    """Return strings that have a format; None: the standard knows none of that name, or it is one of `REFUSED`."""
    pattern = _FORMATS.get(name)
    return None if pattern is None else language_of(f"^({pattern})$")


def short_form(language: Language) -> Language | None:
    """Return strings of a format, given as a language, that have an end; None: it is none, or has only such."""
    if language in map(language_of_format, ("uri", "uri-reference")):
        return language_of(f"^({_SHORT_URI})$")
    return None
