"""The chat page alongside ``lmdeploy serve api_server``, in its own process."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence

from lmdeploy.model_metadata.sampling_defaults import AUTO
from lmdeploy.serve.child import ChildProcess
from lmdeploy.serve.keys import environment_of
from lmdeploy.serve.ports import reachable_host

_START = 60.0  # seconds
_POLL = 0.1


class ChatPage:
    """The page of a running server. It starts when the API is served, which it would slow down before."""

    def __init__(
        self,
        server: str,  # Triton's address, or the URL of an API; the page shows that one of `api_keys`
        control_key: str,  # the model whose adapters Triton lists
        # As for ``lmdeploy serve gradio``
        server_name: str,
        server_port: int,
        api_keys: Sequence[str],
        on_ready: Callable[[], None],  # called, in a thread, once the page can be opened
        generation_config: str = AUTO,  # as for ``lmdeploy serve gradio``
    ) -> None:
        where = ["--server-name", server_name, "--server-port", str(server_port)]
        where += ["--generation-config", generation_config]
        self._command = [sys.executable, "-m", "lmdeploy", "serve", "gradio", server, *where]
        shown = api_keys[:1] if "://" in server else ()
        keys = {"api-keys": api_keys, "api-key": shown, "control-key": [control_key]}
        self._env = {**os.environ, **environment_of(keys)}
        self._address = (reachable_host(server_name), server_port)
        self._on_ready = on_ready
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure = ""

    def start(self) -> None:
        """Start it; return at once."""
        self._thread = threading.Thread(target=self._run, name="chat page", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop it."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        page = ChildProcess(self._command, env=self._env, log=logging.getLogger("webui").info)
        try:
            if self._wait_accepting(page):
                self._on_ready()
                self._stopping.wait()
            elif not self._stopping.is_set():
                self.failure = "the chat page did not start:\n" + "\n".join(page.tail()[-20:])
                os.kill(os.getpid(), signal.SIGTERM)  # it was asked for: without it the command has failed
        finally:
            page.stop(grace=5)

    def _wait_accepting(self, page: ChildProcess) -> bool:
        for _ in range(int(_START / _POLL)):
            try:
                socket.create_connection(self._address, timeout=1).close()
            except OSError:
                if page.returncode is not None or self._stopping.wait(_POLL):
                    return False
            else:
                return True
        return False
