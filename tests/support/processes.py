"""Which processes are alive, and what they hold, read from /proc."""

import contextlib
from pathlib import Path


def session_members(session: int) -> set[int]:
    """Return the living processes of a session, which a process started in its own session passes to all below it."""
    return {pid for pid, (state, member_of) in _processes().items() if member_of == session and state not in "ZX"}


def children(pid: int) -> list[int]:
    """Return the processes that any thread of a process started, and that nobody has waited for yet."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            found.update(int(word) for word in file.read_text().split())
    return sorted(found)


def command_line(pid: int) -> str:
    """Return the words a process was started with, spaces between; nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def threads(pid: int) -> list[int]:
    """Return the ids of a process's threads."""
    return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]


def memory(pid: int, name: str = "VmRSS") -> float:
    """Return a line of a process's status, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


def open_files(pid: int) -> int:
    """Return the number of file descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _processes() -> dict[int, tuple[str, int]]:
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it ended meanwhile
            continue
        # proc(5): pid (command) state ppid pgrp session ...; the command may hold blanks and parentheses
        state, _, _, session = stat.rpartition(")")[2].split()[:4]
        found[int(entry.name)] = (state, int(session))
    return found
