"""Clients of a running Triton, and its launcher.

The package is also the function ``lmdeploy.serve(...)`` of the Python API, see `lmdeploy.serve.api.serve`: LMDeploy's
documentation uses the name for both. A package that can be called is both in any order of imports.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmdeploy.serve.openai.api_client import APIClient


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> "APIClient":
        """Start an API server in its own process; see `lmdeploy.serve.api.serve`."""
        from lmdeploy.serve.api import serve

        return serve(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
