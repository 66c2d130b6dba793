"""``format`` of strings: the formats of JSON Schema 2020-12 as languages.

Each is of strings that have the format, if not of all: what no language of moderate size can distinguish, as valid
Punycode after ``xn--``, is left out. A format that the standard does not know is an annotation.
"""

from __future__ import annotations

from functools import cache
from unicodedata import is_normalized

from lmdeploy.json_schema.languages import Language
from lmdeploy.json_schema.patterns import language_of

_YEAR = r"([1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_LEAP_YEAR = r"(\d{2}(0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26]|0[48])00)"
_DAY_OF_YEAR = r"((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
_DATE = f"({_YEAR}-{_DAY_OF_YEAR}|{_LEAP_YEAR}-02-29)"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,18})?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_SPAN = r"T(\d+S|\d+M(\d+S)?|\d+H(\d+M(\d+S)?)?)"
_DURATION = rf"P((\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)({_SPAN})?|{_SPAN}|\d+W)"


def _label(own: str, max_len: int) -> str:
    """Return the expression of labels of up to so many characters, none of which has hyphens third and fourth."""
    third = f"([{own}]([{own}-]{{0,{max_len - 4}}}[{own}])?|-[{own}]([{own}-]{{0,{max_len - 5}}}[{own}])?)"
    return f"[{own}]([{own}]{third}?|-{third})?"


def _hostname(more: int) -> str:
    """Return the expression of names with labels of up to 63 characters, and more labels of up to 20."""
    long, short = _label("A-Za-z0-9", 63), _label("A-Za-z0-9", 20)
    return rf"{long}(\.{long}(\.{short}){{0,{more}}})?"


# Letters that IDNA (RFC 5892) has in labels, those read from the right to the left (RFC 5893) apart, and the marks
# between letters of its appendix A. Their counts keep the encoded label below 64 octets.
_LATIN = "".join(char for char in map(chr, range(0xDF, 0x180)) if char.islower() and is_normalized("NFKC", char))
_LOW = rf"a-z0-9{_LATIN}\u03ac-\u03ce\u0430-\u045f"
_KANA = r"\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff"
_ALL = rf"{_LOW}\u0f0b\u3007{_KANA}\u30fc\u3400-\u4dbf\uac00-\ud7a3"
_ARABIC, _HEBREW = r"\u0620-\u063f\u0641-\u064a\u06fd\u06fe", r"\u05d0-\u05ea"
_JOINING = r"[\u0628\u062a-\u062e\u064a]{1,6}"
_RTL = (
    rf"([{_HEBREW}{_ARABIC}]{{1,20}}|[{_HEBREW}]{{1,9}}[\u05f3\u05f4][{_HEBREW}]{{0,9}}|{_JOINING}\u200c{_JOINING}"
    rf"|[{_ARABIC}]{{1,9}}[\u0660-\u0669]{{1,4}}[{_ARABIC}]{{0,5}})"
)
_U_LABEL = (
    rf"[{_LOW}]{{1,12}}(-[{_LOW}]{{1,7}})?|[{_ALL}]{{1,8}}(-[{_ALL}]{{1,5}})?|\u30fb?[{_KANA}][{_KANA}\u30fb]{{0,6}}"
    r"|[a-z0-9]{0,20}l\u00b7l[a-z0-9]{0,20}|[\u03b1-\u03c9]{1,9}\u0375[\u03b1-\u03c9]{1,9}|[0-9\u06f0-\u06f9]{1,9}"
    r"|[\u0915-\u0939]((\u094d[\u200c\u200d]?)?[\u0915-\u0939]){0,5}"
)
_IDN_FIRST, _IDN_NEXT = (f"({_label('A-Za-z0-9', max_len)}|{_U_LABEL})" for max_len in (63, 62))
_IDN_HOSTNAME = rf"({_IDN_FIRST}([.\u3002\uff0e\uff61]{_IDN_NEXT}){{0,3}}|{_RTL}(\.{_RTL}){{0,2}}(\.[a-z]{{2,20}})?)"

_BYTE = r"(25[0-5]|2[0-4]\d|1\d{2}|[1-9]?\d)"
_IPV4 = rf"({_BYTE}\.){{3}}{_BYTE}"
_GROUP = r"[0-9A-Fa-f]{1,4}"


def _ipv6(ipv4: str, count: int = 0) -> str:
    """Return the expression of what follows groups of an IPv6 address, the last two of which `ipv4` may replace."""
    left = 7 - count  # groups after ::
    more = rf"({_GROUP}:){{0,{left - 2}}}({_GROUP}(:{_GROUP})?{ipv4})" if left > 1 else _GROUP
    further = f"{_GROUP}:({_ipv6(ipv4, count + 1)})" if left else _GROUP
    skipped = f":({more})?" if left else ":"
    return f"{further}|{skipped if count else ':' + skipped}{ipv4 if left == 1 else ''}"


_IPV6 = _ipv6(f"|{_IPV4}")

# Of an address, at most 64 octets before the @ and 254 in all (RFC 5321).
_ATOM = r"A-Za-z0-9!#$%&'*+/=?^_`{|}~-"
_QUOTED = r'"([ !#-\[\]-~]|\\[ -~]){0,31}"'
_LOCAL = rf"([{_ATOM}]{{1,22}}((\.[{_ATOM}]{{1,20}}){{0,2}}|[{_ATOM}]{{1,42}})|{_QUOTED})"
_LITERAL = rf"\[({_IPV4}|IPv6:({_IPV6}))\]"
_EMAIL = rf"{_LOCAL}@({_hostname(2)}|{_LITERAL})"
# The same of characters of four bytes each.
_U_ATOM = rf"[\u0080-\ud7ff\ue000-\u{{10ffff}}{_ATOM}]"
_U_LOCAL = rf"{_U_ATOM}{{1,8}}(\.{_U_ATOM}{{1,7}}|{_U_ATOM}{{1,8}})?"
_IDN_EMAIL = rf"({_LOCAL}|{_U_LOCAL})@({_IDN_FIRST}(\.{_IDN_NEXT}){{0,2}}|{_LITERAL})"

_ENCODED = "%[0-9A-Fa-f]{2}"
_DELIMITERS = "!$&'()*+,;="
_PLANES = "".join(rf"\u{{{plane:x}0000}}-\u{{{plane:x}fffd}}" for plane in range(1, 14))
_UCS = rf"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef{_PLANES}\u{{e1000}}-\u{{efffd}}"
_PRIVATE = r"\ue000-\uf8ff\u{f0000}-\u{ffffd}\u{100000}-\u{10fffd}"


def _uri(further: str = "", private: str = "", *, is_reference: bool = False) -> str:
    """Return the expression of URIs (RFC 3986) or references that have some further characters, as IRIs (RFC 3987)."""
    name = rf"A-Za-z0-9._~{_DELIMITERS}{further}-"
    segment, short = rf"([:@{name}]|{_ENCODED})", rf"([@{name}]|{_ENCODED})"
    host = rf"(([{name}]|{_ENCODED})*|\[({_IPV6}|[Vv][0-9A-Fa-f]+\.[A-Za-z0-9._~:{_DELIMITERS}-]+)\])"
    authority = rf"(([:{name}]|{_ENCODED})*@)?{host}(:\d*)?"
    more = rf"(/{segment}*)*"
    path = rf"/(/{authority}{more}|{segment}+{more})?"
    start = rf"[A-Za-z][A-Za-z0-9+.-]*:({path}|{segment}+{more})?"
    start = rf"({start}|{path}|{short}+{more})?" if is_reference else start
    return rf"{start}(\?({segment}|[/?{private}])*)?(#({segment}|[/?])*)?"


_NAME = rf"([A-Za-z0-9_]|{_ENCODED})+"
_VARIABLE = rf"({_NAME}(\.{_NAME})*(:[1-9]\d{{0,3}}|\*)?)"
_URI_TEMPLATE = (
    rf"([A-Za-z0-9._~:@/?#\[\]{_DELIMITERS}{_UCS}{_PRIVATE}-]|{_ENCODED}|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*"
)
_POINTER = r"(/([^~/]|~[01])*)*"


def _regex(groups: int) -> str:
    """Return the expression of regular expressions whose groups are nested so deep at most."""
    count = r"(([*+?]|\{\d(\d{0,2},?|,[1-9]\d)\})\??)?"
    parts = [
        rf"([A-Za-z0-9 _,:;<>=!@#%~'/.-]|\\[dDsSwWtnrfv.*+?()\[\]{{}}|^$\\/-]){count}",
        rf"\[\^?([A-Za-z0-9 _,:;<>=!@#%'/.(){{}}+*?$]|a-z|A-Z|0-9)+\]{count}",
        r"[\^$|]",
    ]
    if groups:
        inner = _regex(groups - 1)
        parts += [rf"\((\?:)?{inner}\){count}"]
    return f"({'|'.join(parts)})*"


FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _IDN_EMAIL,
    "hostname": _hostname(6),
    "idn-hostname": _IDN_HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": _uri(),
    "iri": _uri(_UCS, _PRIVATE),
    "uri-reference": _uri(is_reference=True),
    "iri-reference": _uri(_UCS, _PRIVATE, is_reference=True),
    "uri-template": _URI_TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(0|[1-9]\d*)(#|{_POINTER})",
    "regex": _regex(2),
}
# Shorter ones, for where a length is bounded.
_SHORT_URI = r"[A-Za-z][A-Za-z0-9+.-]{0,11}://[A-Za-z0-9.-]{1,63}(/[A-Za-z0-9._~!$&'()*+,;=:@/?-]{0,128})?"
_SHORT = dict.fromkeys(("uri", "iri", "uri-reference", "iri-reference"), _SHORT_URI) | {
    "email": f"{_LOCAL}@{_hostname(2)}",
    "ipv6": _ipv6(""),
}
_shorter: dict[Language, str] = {}  # expressions, of formats that were asked for


@cache
def language_of_format(name: str) -> Language | None:
    """Return strings that have a format; None: the standard knows none of that name."""
    pattern = FORMATS.get(name)
    if pattern is None:
        return None
    language = language_of(f"^({pattern})$", max_length=len(pattern) + 4)
    if name in _SHORT:
        _shorter[language] = _SHORT[name]
    return language


def short_form(language: Language) -> Language:
    """Return strings of a language that are shorter, where it is a format with such; else itself."""
    pattern = _shorter.get(language)
    return language if pattern is None else language_of(f"^({pattern})$")
