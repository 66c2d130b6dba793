"""`lmdeploy list` names a reference of each architecture."""

from lmdeploy.turbomind.served_architectures import served_architectures


def test_every_architecture_is_compared_with_something() -> None:
    assert [row.architecture for row in served_architectures() if not row.tested] == []
