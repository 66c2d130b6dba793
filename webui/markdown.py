"""Escaping for Gradio's Markdown: the model's is Markdown without HTML, the reader's is shown as it is.

A character that is no markup here is sent as one of Unicode's private use, at which Gradio's parsers do not look;
`browser.js` turns it back in the nodes of text, where nothing is markup any more.
"""

from __future__ import annotations

import re

_PRIVATE = 0xE000  # and the character's ASCII code
_MARKS = 0xE080  # `MARKS` of browser.js
_BOX = _MARKS + 8
_OURS = re.compile("[\ue000-\ue08f]")
_PUNCTUATION = re.compile(r"[\x00-/:-@\[-`{-\x7f]")
# No formula has an empty line or a backtick. A single dollar is a mark alongside what is no space, and never in a word.
_MARKUP = re.compile(
    r"""\\\$
    | \$\$ (?P<f0> (?: (?!\$\$ | \n[ \t]*\n) [^`] )+? ) \$\$
    | \\\[ (?P<f1> (?: (?!\n[ \t]*\n) [^`] )+? ) \\\]
    | \\\( (?P<f2> (?: (?!\n[ \t]*\n) [^`] )+? ) \\\)
    | (?<![\w$]) \$ (?P<f3> (?!\s) [^$`\n]*? [^$`\n\s\\] ) \$ (?![\w$])
    | (?P<item> ^ [ \t>]* (?:[-*+] | \d+[.)]) [ \t]+ ) \[ (?P<tick> [ xX] ) \] (?=\s)
    | < (?P<link> (?:https?://|mailto:) [^\s<>]+ ) >
    | (?P<text> < | %%%(?=LATEX) )
    | (?P<fence> ``` ) (?=mermaid)""",
    re.VERBOSE | re.MULTILINE,
)

LATEX = [
    {"left": chr(_MARKS + 2 * kind), "right": chr(_MARKS + 2 * kind + 1), "display": kind < 2} for kind in range(4)
]
"""Delimiters of formulas in `markdown`, in all of a model's notations."""


def verbatim(text: str) -> str:
    """Return Markdown that shows a text as it is."""
    return _PUNCTUATION.sub(lambda found: chr(_PRIVATE + ord(found[0])), _OURS.sub("", text))


def markdown(text: str) -> str:
    """Return the Markdown of a text that a model wrote: its formulas are marked, its HTML is text."""
    return _MARKUP.sub(_marked, _OURS.sub("", text))


def _marked(found: re.Match[str]) -> str:
    kind = found.lastgroup
    match kind:
        case None:
            return found[0]
        case "tick":
            return str(found["item"]) + chr(_BOX + (found["tick"] != " "))
        case "link":
            return f"{verbatim('<')}{found['link']}{verbatim('>')}"
        case "text":
            return verbatim(found[0])
        case "fence":
            return "``` "  # no diagram, whose labels are HTML
    number = int(kind.removeprefix("f"))
    formula = re.sub(r"<(?=[A-Za-z/!?])", "< ", found[kind])  # begins no tag, and means the same
    return f"{LATEX[number]['left']}{formula}{LATEX[number]['right']}"
