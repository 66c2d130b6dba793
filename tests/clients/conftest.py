"""The real server of tests/e2e, for clients that need one."""

from tests.e2e.conftest import gateway, triton_server

__all__ = ["gateway", "triton_server"]
