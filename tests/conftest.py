"""Fixtures for every test."""

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

# Before torch is imported. Threads of OpenMP spin while they wait, which costs several times what tiny models compute
# where two workers and their servers share the processors.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from tests.support.flaky import allow_reruns, begin_afresh, report_flaky
from tests.support.order import order
from tests.support.samples import OPTION, leave_out
from tools.default_model import make

# A shell starts background commands with SIGINT ignored, `nohup` with SIGHUP, and so would they the servers that tests
# signal.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
# Every engine, also one inside a server that a test starts, checks itself whenever it goes idle.
os.environ["LMDEPLOY_CHECK_INVARIANTS"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    more = "run all cases of tests marked `alike`, not a sample, and those marked `thorough`"
    parser.addoption(OPTION, action="store_true", help=more)


def pytest_configure(config: pytest.Config) -> None:
    if find_spec("httpx"):  # machines with a GPU need have neither of the two
        import httpx

        # Of calls that name none: 5 seconds may be over on a busy machine.
        for name in ("connect", "read", "write", "pool"):
            setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, name, 180.0)
    if find_spec("hypothesis"):
        from hypothesis import HealthCheck, settings

        # `make test` has the same examples each time, so that it fails for what was changed alone; others are for
        # test-all. How long an example takes says how busy the machine is.
        settings.register_profile(
            "ours",
            derandomize=not config.getoption(OPTION),
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        )
        settings.load_profile("ours")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    # Test modules and the libraries they import stay. To look for garbage among them takes 8 seconds of each worker.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000)
        gc.enable()
        if "torch" in sys.modules:  # its second thread costs tiny models more than it computes
            sys.modules["torch"].set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out(config, items)
    order(items)
    allow_reruns(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    begin_afresh(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    report_flaky(terminalreporter)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests make out of the user's cache, but for models and programs, which take long to make."""
    from lmdeploy.paths import cache_root

    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # by all workers of a run
    (shared / "cache").mkdir(exist_ok=True)
    for name in ("models", "peers", "old-clients"):
        kept = cache_root() / name
        kept.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            (shared / "cache" / name).symlink_to(kept)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMDEPLOY_CACHE", str(shared / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _remembered_tokenizers() -> Iterator[None]:
    from tests.support.tokenizer_memory import remember_tokenizers

    with pytest.MonkeyPatch.context() as patch:
        remember_tokenizers(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _warm_workers() -> Iterator[None]:
    if os.environ.keys() & {"COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"}:  # forked processes are not measured
        yield
        return
    from lmdeploy.turbomind import engine
    from tests.support.warm_workers import warm_workers

    with warm_workers() as command, pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_WORKER", command)
        yield


@pytest.fixture(scope="module")
def installed_workers() -> Iterator[None]:
    """Workers are the processes that users have, which can be found by their command and killed."""
    from lmdeploy.turbomind import engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_WORKER", [sys.executable, "-m", "lmdeploy.pytorch.worker"])
        yield


@pytest.fixture(scope="session")
def all_cases(request: pytest.FixtureRequest) -> bool:
    """Whether a test that goes through many cases itself takes all of them, not a sample (`make test-all`)."""
    return bool(request.config.getoption(OPTION))


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The default model's Hugging Face directory, made on first use."""
    from lmdeploy.paths import default_model_dir

    directory = default_model_dir()
    make(directory)
    return directory
