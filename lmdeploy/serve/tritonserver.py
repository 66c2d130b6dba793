"""Start, readiness and shutdown of a tritonserver process."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmdeploy.serve import installation
from lmdeploy.serve.child import ChildProcess
from lmdeploy.serve.errors import TritonStartError
from lmdeploy.serve.multi_model.registry import Registry, ServedEntry
from lmdeploy.serve.ports import DEFAULT_TRITON_HOST, Ports, require_free
from lmdeploy.serve.restrictions import REPOSITORY_KEY, RESTRICTION_KEY, new_key, repository_option, restriction_options
from lmdeploy.serve.shared_memory import Regions

_EXIT_TIMEOUT = 10  # seconds Triton waits for requests in flight when asked to stop
_DRAIN_SECONDS = 5  # of them, how long these requests may continue
_POLL_INTERVAL = 0.1  # seconds
_SHOWN_LINES = 30
_UNLOADED_WITHIN = 5.0  # seconds that Triton may take to see the end of a Python model that it unloads
_OF_ONE_MODEL = frozenset(f"LMDEPLOY_{name}" for name in ("MODEL_PATH", "MODEL_NAME", "CHAT_TEMPLATE", "ENGINE_CONFIG"))
_STUB = "triton_python_backend_stub"  # runs a Python model
_LOAD_FAILURE = re.compile(r"failed to load '(?P<model>[^']+)' version \d+: (?P<reason>.*?)\"?$")
_MODEL_FAILED = re.compile(r"\| (?P<model>[\w.-]+) +\| \d+ +\| UNAVAILABLE: (?P<reason>.*?) *\|$")

_SHORT_TEXT = json.dumps(
    {
        "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}],
        "outputs": [{"name": "INPUT_ID"}],
    }
)


class TritonServer:
    """One tritonserver process."""

    def __init__(
        self,
        repository: Path,
        *,
        # Override the parameters of the models' config.pbtxt; empty: they are
        model_path: str = "",
        model_name: str = "",
        chat_template: str = "",
        # Fields of ``TurbomindEngineConfig``; those not given have their defaults. Adapters are named by directories
        engine_config: Mapping[str, Any] | None = None,
        ports: Ports | None = None,
        host: str = DEFAULT_TRITON_HOST,
        max_log_len: int = 0,  # most characters of a rendered prompt it prints; 0: none
        split_special_tokens: bool = False,  # special tokens in what callers send are text
        # Where its own spans of requests that bring a ``traceparent`` go, by OTLP over HTTP; empty: nowhere
        trace_url: str = "",
        # Seconds after its last request after which a model leaves memory; negative, or None: it stays
        idle_timeout: float | None = None,
        # Bytes for the weights and caches of all models together; None: all that there is
        models_memory: int | None = None,
        log: Callable[[str], None] = lambda line: None,  # gets each line it prints
        # Folders of the backends the repository needs alongside the Python one
        backends: Sequence[Path] = (installation.OUR_BACKEND,),
        # The models that it serves, which may change while it runs; None: all of `repository`, for good
        models: Registry | None = None,
    ) -> None:
        self.ports = ports or Ports()
        self.host = host
        self.control_key = new_key()  # models whose adapters are listed and changed
        # Secret that opens the model repository over gRPC; empty: nothing does
        self.repository_key = "" if models is None else new_key()
        self._models = models
        self._has_started = False
        self._dead_since: dict[str, float] = {}  # processes of Python models
        self._repository = repository
        self._overrides = {
            "LMDEPLOY_MODEL_PATH": model_path,
            "LMDEPLOY_MODEL_NAME": model_name,
            "LMDEPLOY_CHAT_TEMPLATE": chat_template,
            "LMDEPLOY_ENGINE_CONFIG": json.dumps(dict(engine_config)) if engine_config else "",
            "LMDEPLOY_MAX_LOG_LEN": str(max_log_len) if max_log_len else "",
            "LMDEPLOY_SPLIT_SPECIAL_TOKENS": "true" if split_special_tokens else "",
            "LMDEPLOY_DRAIN_SECONDS": str(_DRAIN_SECONDS),
            "LMDEPLOY_CONTROL_KEY": self.control_key,
            "LMDEPLOY_IDLE_TIMEOUT": "" if idle_timeout is None else f"{idle_timeout:g}",
            "LMDEPLOY_MODELS_MEMORY": str(models_memory or ""),
        }
        self._trace_url = trace_url
        self._log = log
        self._backends = backends
        self._child: ChildProcess | None = None
        self._regions: Regions | None = None

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def grpc_address(self) -> str:
        """``host:port`` for clients on this machine."""
        return f"{self._client_host}:{self.ports.grpc}"

    @property
    def http_address(self) -> str:
        """``host:port`` for clients on this machine."""
        return f"{self._client_host}:{self.ports.http}"

    @property
    def metrics_url(self) -> str:
        """Where Prometheus reads, on this machine."""
        return f"http://{self._client_host}:{self.ports.metrics}/metrics"

    @property
    def unloaded(self) -> dict[str, str]:
        """Models that could not be loaded at the start, and why."""
        entries = () if self._models is None else self._models.models()
        return {entry.name: entry.error for entry in entries if entry.error}

    @property
    def pid(self) -> int | None:
        """Its process; None before `start`."""
        return self._child.pid if self._child else None

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._child is not None and self._child.returncode is None

    def start(self) -> None:
        """Start it; it is not ready yet.

        Raises `TritonStartError` if there is no tritonserver or backend, or a port is in use.
        """
        found = installation.find_tritonserver()
        for name, port in (("http", self.ports.http), ("grpc", self.ports.grpc), ("metrics", self.ports.metrics)):
            require_free(self.host, port, f"Triton (--triton-{name}-port)")
        backends = installation.backend_directory(found, self._backends)
        env = installation.server_environment(found)
        if self._models is not None:  # each model has its own in its folders
            env = {name: value for name, value in env.items() if name not in _OF_ONE_MODEL}
        env.update({name: value for name, value in self._overrides.items() if value})
        env.update({RESTRICTION_KEY: new_key(), REPOSITORY_KEY: self.repository_key})
        if self._regions is None:
            self._regions = Regions()
        self._child = ChildProcess(self._command(found.binary, backends), env=env, log=self._log)
        self._has_started = True

    def wait_ready(self, timeout: float = 600.0, progress: Callable[[float], None] = lambda seconds: None) -> None:
        """Return once every model is ready.

        Raises `TritonStartError` if it ended, or was not ready in time; the text has the reason from its log.
        ``progress``: called again and again with the seconds waited so far.
        """
        begin = time.monotonic()
        while not self.is_ready():
            waited = time.monotonic() - begin
            if not self.is_running:
                raise TritonStartError(self.failure(f"tritonserver ended after {waited:.0f} s"))
            if waited > timeout:
                raise TritonStartError(self.failure(f"tritonserver was not ready after {timeout:.0f} s"))
            progress(waited)
            time.sleep(_POLL_INTERVAL)
        if self._models is not None:
            self._record_failures(self._models)

    def _record_failures(self, registry: Registry) -> None:
        """Keep in the registry which of its models could not be loaded, and why; the others are served."""
        failures, entries = load_failures(self.log_tail()), list[ServedEntry]()
        for entry in registry.models():
            reasons = (failures[name] for name in entry.triton_models if name in failures)
            entries.append(replace(entry, error=next(reasons, "")))
        if entries and all(entry.error for entry in entries):
            raise TritonStartError(self.failure("no model could be loaded"))
        if entries != list(registry.models()):
            registry.write(entries)

    def is_ready(self) -> bool:
        """Return whether it answers and every model is ready."""
        connection = http.client.HTTPConnection(self._client_host, self.ports.http, timeout=2)
        try:
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def prepares_prompts(self, timeout: float) -> bool:
        """Return whether template and tokenizer respond in so many seconds; unknown, so true, of several models."""
        if self._models is not None:
            return True
        connection = http.client.HTTPConnection(self._client_host, self.ports.http, timeout=timeout)
        try:
            connection.request("POST", "/v2/models/preprocessing/infer", _SHORT_TEXT)
            connection.getresponse().read()
        except TimeoutError:
            return False
        except (OSError, http.client.HTTPException):  # it is being started or stopped
            return True
        finally:
            connection.close()
        return True

    def has_lost_a_model(self) -> bool:
        """Return whether the process of a Python model has ended. Triton stays ready, and never starts it again."""
        if self._child is None:
            return False
        files = Path(f"/proc/{self._child.pid}/task").glob("*/children")
        with contextlib.suppress(OSError):  # the server, or a thread of it, ends at this moment
            children = [child for file in files for child in file.read_text().split()]
            dead = {child for child in children if _is_dead_stub(Path("/proc", child, "stat"))}
            now = time.monotonic()
            self._dead_since = {child: self._dead_since.get(child, now) for child in dead}
            timeout = 0.0 if self._models is None else _UNLOADED_WITHIN
            return any(now - since >= timeout for since in self._dead_since.values())
        return False

    def wait(self, timeout: float | None = None) -> int | None:
        """Return its exit status, or None when it still runs after `timeout` seconds."""
        return self._child.wait(timeout) if self._child else None

    def log_tail(self) -> list[str]:
        """Return the last lines it printed."""
        return self._child.tail() if self._child else []

    def failure(self, what: str) -> str:
        """Return an error text with its reason: the models that could not be loaded, else the end of the log."""
        lines = self.log_tail()
        failures = load_failures(lines)
        reason = "; ".join(f"model {model} could not be loaded: {why}" for model, why in failures.items())
        shown = "\n".join(lines[-_SHOWN_LINES:])
        return f"{what}: {reason}" if reason else f"{what}; the end of its log:\n{shown}"

    def stop(self, grace: float = _EXIT_TIMEOUT + 5.0) -> None:
        """Stop it, by force after `grace` seconds, and everything it started."""
        if self._child is not None:
            self._child.stop(grace)
        if self._regions is not None:
            self._regions.remove()
            self._regions = None

    @property
    def _client_host(self) -> str:
        return "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host

    def _command(self, binary: Path, backends: Path) -> list[str]:
        assert self._regions is not None
        options = {
            "model-repository": self._repository,
            "backend-directory": backends,
            "http-address": self.host,
            "http-port": self.ports.http,
            "grpc-address": self.host,
            "grpc-port": self.ports.grpc,
            "metrics-address": self.host,
            "metrics-port": self.ports.metrics,
            "exit-timeout-secs": _EXIT_TIMEOUT,
            "log-verbose": 0,
            "disable-auto-complete-config": None,
            "backend-config": f"python,shm-region-prefix-name={self._regions.prefix}",
            **restriction_options(new_key(), but_repository_over_grpc=self._models is not None),
        }
        flags = (f"--{name}" if value is None else f"--{name}={value}" for name, value in options.items())
        return [str(binary), *flags, *self._model_options(), *_trace_options(self._trace_url)]

    def _model_options(self) -> list[str]:
        """Return the options that let models come and go; a server of one model has none."""
        if self._models is None:
            return ["--exit-on-error=true"]
        loaded = [f"--load-model={name}" for model in self._models.models() for name in model.triton_models]
        return [
            "--model-control-mode=explicit",
            repository_option(new_key()),
            # A model that is being loaded, or could not be loaded again after a restart, does not concern the others.
            "--strict-readiness=false",
            # The only one at the start is all that there is to serve.
            f"--exit-on-error={'false' if self._has_started or len(self._models.models()) > 1 else 'true'}",
            *loaded,
        ]


def _trace_options(url: str) -> list[str]:
    """Return the options of Triton's own trace mode, of requests whose caller traces them alone."""
    if not url:
        return []
    reporting = ["mode=opentelemetry", f"opentelemetry,url={url}", "opentelemetry,resource=service.name=tritonserver"]
    return [f"--trace-config={option}" for option in (*reporting, "level=TIMESTAMPS", "rate=0", "count=-1")]


def _is_dead_stub(stat: Path) -> bool:
    # proc(5): pid (name) state ...; the name has 15 characters at most, and the parent has not waited for a zombie.
    _, _, rest = stat.read_text(errors="replace").partition("(")
    name, _, fields = rest.rpartition(")")
    return _STUB.startswith(name) and fields.split()[0] == "Z"


def load_failures(log: Sequence[str]) -> dict[str, str]:
    """Return which models failed to load and why, from tritonserver's log."""
    failures: dict[str, str] = {}
    for line in log:
        match = _LOAD_FAILURE.search(line) or _MODEL_FAILED.search(line)
        if match:
            failures.setdefault(match["model"], match["reason"])
    return failures
