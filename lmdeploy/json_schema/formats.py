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
_GROUPS = 8  # of an IPv6 address


def _after_groups(count: int) -> str:
    """Return the rest of an address after some groups, none of them left out; addresses end without one of IPv4."""
    left = _GROUPS - count
    if left == 1:
        return rf":({_GROUP}|:)"
    return rf":({_GROUP}{_after_groups(count + 1)}|:({_GROUP}(:{_GROUP}){{0,{left - 2}}})?)"


_IPV6 = rf"{_GROUP}{_after_groups(1)}|::({_GROUP}(:{_GROUP}){{0,{_GROUPS - 2}}})?"
_DURATION = (
    r"P((\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)(T(\d+S|\d+M(\d+S)?|\d+H(\d+M(\d+S)?)?))?"
    r"|T(\d+S|\d+M(\d+S)?|\d+H(\d+M(\d+S)?)?)|\d+W)"
)
_UUID = r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
# Beyond ASCII: characters that RFC 3987 has in names and paths, and letters that IDNA (RFC 5892) has in labels, none of
# them read from the right to the left.
_UCS = r"\u00a0-\ud7ff"
_LETTERS = (
    r"a-z0-9\u00df-\u00f6\u00f8-\u00ff\u03b1-\u03c1\u03c3-\u03c9\u0430-\u044f\u3041-\u3096\u4e00-\u9fff\uac00-\ud7a3"
)
_IDN_LABEL = rf"([{_LETTERS}]{{1,12}}(-[{_LETTERS}]{{1,12}})?)"
_IDN_HOSTNAME = rf"{_IDN_LABEL}(\.{_IDN_LABEL}){{0,3}}"
_IDN_ATOM = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{_UCS}-]"
_IDN_EMAIL = rf"{_IDN_ATOM}{{1,24}}(\.{_IDN_ATOM}{{1,16}})?@{_IDN_HOSTNAME}"


def _uri(further: str) -> str:
    """Return the expression of URIs whose names and paths have some further characters."""
    pchar = _pchar(further)
    path = rf"(//{_authority(further)}(/{pchar}*)*|/?{pchar}+(/{pchar}*)*)"
    return rf"[A-Za-z][A-Za-z0-9+.-]*:{path}{_rest(further)}"


def _reference(further: str) -> str:
    """Return the expression of such URIs, and of what is relative to one."""
    pchar, rest = _pchar(further), _rest(further)
    return (
        rf"{_uri(further)}|/(/{_authority(further)}(/{pchar}*)*|{pchar}+(/{pchar}*)*)?{rest}"
        rf"|([A-Za-z0-9._~{further}-]+(/{pchar}*)*)?{rest}"
    )


def _pchar(further: str) -> str:
    return rf"([A-Za-z0-9._~!$&'()*+,;=:@{further}-]|%[0-9A-Fa-f]{{2}})"


def _rest(further: str) -> str:
    return rf"(\?({_pchar(further)}|[/?])*)?(#({_pchar(further)}|[/?])*)?"


def _authority(further: str) -> str:
    name = rf"[A-Za-z0-9{further}]([A-Za-z0-9.{further}-]*[A-Za-z0-9{further}])?"
    return rf"([A-Za-z0-9._~{further}-]+@)?{name}(:\d{{1,4}})?"


_VARIABLE = r"([A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*(:[1-9]\d{0,3}|\*)?)"
_URI_TEMPLATE = rf"([A-Za-z0-9._~!$&()*+,;=:@/?#\[\]-]|%[0-9A-Fa-f]{{2}}|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*"
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
    "idn-email": _IDN_EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _IDN_HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": _UUID,
    "uri": _uri(""),
    "iri": _uri(_UCS),
    "uri-reference": _reference(""),
    "iri-reference": _reference(_UCS),
    "uri-template": _URI_TEMPLATE,
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
