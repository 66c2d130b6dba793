"""Check the subjects of commits: `area: imperative`, at most 72 characters (`make lint`).

Checks commits since the rule was made, without merges and reverts. A checkout without that history passes.
"""

from __future__ import annotations

import re
import subprocess
import sys

SINCE = "469ceaf056dae67b1e360f553c5bb86fc93935a5"  # the last commit before the rule
LIMIT = 72
_SUBJECT = re.compile(r"(?P<area>[\w./-]+(?:, [\w./-]+)*): (?P<verb>\S+)(?: .*)?")
_OTHER_FORM = re.compile(r"\w+(?:ed|ing|[^s]s)")
_IMPERATIVES = {"bring", "embed", "feed", "need", "ping", "seed", "shed", "speed", "bias", "alias"}


def fault(subject: str) -> str:
    """Return what is wrong with a subject, or an empty string."""
    if len(subject) > LIMIT:
        return f"{len(subject)} characters, at most {LIMIT}"
    if (match := _SUBJECT.fullmatch(subject)) is None:
        return "expected 'area: imperative', such as 'engine: free blocks after a cancel'"
    verb = match["verb"]
    if verb != verb.lower():
        return f"expected {verb.lower()!r} after the area, got {verb!r}"
    if verb not in _IMPERATIVES and _OTHER_FORM.fullmatch(verb):
        return f"expected an imperative such as 'add' or 'fix', got {verb!r}"
    return "ends with a full stop" if subject.endswith(".") else ""


def history(since: str) -> list[tuple[str, str]] | None:
    """Return hash and subject of each commit after `since`; None where the checkout does not have it."""
    command = ["git", "log", "--no-merges", "--format=%h%x09%s", f"{since}..HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return None
    commits = [line.partition("\t") for line in done.stdout.splitlines()]
    return [(commit, subject) for commit, _, subject in commits if not subject.startswith('Revert "')]


def main(since: str = SINCE) -> int:
    """Print each commit to reword; return the exit status."""
    if (commits := history(since)) is None:
        print(f"commit subjects: not checked, as this checkout has no commit {since}")
        return 0
    faults = [f"{commit} {subject!r}: {said}" for commit, subject in commits if (said := fault(subject))]
    print("\n".join([*faults, f"commit subjects: {len(commits)} checked, {len(faults)} to reword"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
