"""Rejection of documented settings that are not implemented; support deletes a line."""

from lmdeploy.messages import DEVICES, PytorchEngineConfig, TurbomindEngineConfig

# Further devices in LMDeploy's documentation; docs/internals/new-device.md says how a device is added.
_OTHER_DEVICES = {"ascend": "Huawei's NPUs", "maca": "MetaX's GPUs", "camb": "Cambricon's MLUs"}


def reject_unsupported_engine(config: TurbomindEngineConfig | PytorchEngineConfig) -> None:
    """Raise ``ValueError`` for an engine, a device, or a setting of one, that is not supported yet."""
    if isinstance(config, PytorchEngineConfig):
        reject_unknown_device("device_type", config.device_type)


def reject_unknown_device(name: str, device: str) -> None:
    """Raise ``ValueError`` unless there is code for a kind of device; ``name`` is what the user calls the setting."""
    if device in DEVICES:
        return
    owner = _OTHER_DEVICES.get(device)
    reason = f": there is no code for {owner} yet" if owner else ""
    raise ValueError(f"{name} must be cpu or cuda{reason}, got {device!r}")
