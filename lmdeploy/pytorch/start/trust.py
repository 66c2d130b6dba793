"""Self-checks of our GPU kernels: PyTorch's serve an operator where ours fail.

A self-check runs an operator on a small problem with known results, once a process, before the first request. What
fails it, or cannot run at all, is left out with a warning.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
from collections.abc import Callable

import torch

from lmdeploy import _turbomind

logger = logging.getLogger(__name__)

Check = Callable[[], str]  # what is wrong; empty: nothing


def is_trusted(operator: str, check: Check, what: str = "") -> bool:
    """Return whether our kernels serve an operator; PyTorch's do where the environment says so, or the check fails.

    ``operator``: its name in the table of operators. ``what``: what the warning says is computed, by default the same.
    """
    if _turbomind.requested_kernels("pytorch", operator) == "torch":
        return False
    if problem := _problem_of(check):
        logger.warning(
            "own kernels are left out of %s: %s; next are torch kernels (%s)", what or operator, problem, _versions()
        )
    return not problem


def _versions() -> str:
    """Return the versions of what brings kernels here."""
    found = {"PyTorch": torch.__version__, "CUDA": torch.version.cuda or "none"}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["Triton"] = importlib.metadata.version("triton")
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _problem_of(check: Check) -> str:
    try:
        return check()
    except Exception as error:  # of any library: a compiler, a driver, memory
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
