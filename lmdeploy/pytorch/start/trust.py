"""Choice of a GPU kernel for an operator: the first of its order of trust that is installed and passes its self-check.

A self-check runs an operator on a small problem with known results, once a process, before the first request. What
fails it, or cannot run at all, is left out with a warning, and the next of the order is tried.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import logging
from collections.abc import Callable, Mapping

import torch

from lmdeploy import _turbomind

logger = logging.getLogger(__name__)

Check = Callable[[], str]  # what is wrong; empty: nothing


def order_of(operator: str) -> list[str]:
    """Return the kernels of an operator, the most trusted first, or those that the environment names."""
    [order] = (
        entry["order"]
        for entry in _turbomind.kernel_operators()
        if entry["engine"] == "pytorch" and entry["name"] == operator
    )
    override = _turbomind.requested_kernels("pytorch", operator)
    return sorted(order, key=lambda source: source != override)


def first_trusted(operator: str, checks: Mapping[str, Check], what: str) -> str:
    """Return the kernel for an operator.

    ``operator``: its name in the table of operators. ``checks``: the self-check of each of its kinds of kernels
    (`library`, `own`, `torch`) that is there; the last kind of the order needs none. ``what``: what the warning says is
    computed.
    """
    order = [source for source in order_of(operator) if source in checks]
    for source, following in itertools.pairwise(order):
        problem = _problem_of(checks[source])
        if not problem:
            return source
        logger.warning(
            "%s kernels are left out of %s: %s; next are %s kernels (%s)", source, what, problem, following, _versions()
        )
    return order[-1]


def _versions() -> str:
    """Return the versions of what brings kernels here."""
    found = {"PyTorch": torch.__version__, "CUDA": torch.version.cuda or "none"}
    for name, package in (("Triton", "triton"), ("FlashInfer", "flashinfer-python")):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(package)
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _problem_of(check: Check) -> str:
    try:
        return check()
    except Exception as error:  # of any library: a compiler, a driver, memory
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
