"""Program start with a parent-death signal (Linux) and private files.

``python exec_with_parent.py PARENT_PID PROGRAM ARGUMENT...``
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>; survives exec


def main() -> None:
    """Ask the kernel for the signal, then replace this process."""
    parent, *command = sys.argv[1:]
    os.umask(0o077)  # what it writes may hold what callers send
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        sys.exit(1)
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
