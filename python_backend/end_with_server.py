"""End of a Python model with its server: ``python end_with_server.py SERVER MODEL SECONDS``, two process numbers.

A model whose server was killed may wait for its answer forever. It holds the interpreter's lock then, so that none of
its own threads can end it.
"""

import os
import select
import signal
import subprocess
import sys

SECONDS = 5.0  # that a model has to end by itself


def end_with_server() -> None:
    """Start a program that ends this process if its parent, the server, ends first."""
    python = os.environ.get("LMDEPLOY_PYTHON") or sys.executable
    command = [python, "-I", "-S", __file__, str(os.getppid()), str(os.getpid()), str(SECONDS)]
    nothing = subprocess.DEVNULL
    subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)


def main() -> None:
    """Wait for either to end, then for the model."""
    server, model = (os.pidfd_open(int(number)) for number in sys.argv[1:3])
    ends = select.poll()
    ends.register(server, select.POLLIN)
    ends.register(model, select.POLLIN)
    if model in dict(ends.poll()):
        return
    ends.unregister(server)
    if not ends.poll(1000 * float(sys.argv[3])):
        signal.pidfd_send_signal(model, signal.SIGKILL)


if __name__ == "__main__":
    main()
