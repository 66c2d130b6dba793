"""The folder of a run: what is finished, and what it takes to continue an interrupted one."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lmdeploy.lite.settings import RunSettings

logger = logging.getLogger(__name__)

_CHANGE_NOTHING = ("batch_size", "device")  # but the time


def open_work_dir(work_dir: Path, model_dir: Path, command: str, settings: RunSettings, text: str) -> Path:
    """Return the folder for unfinished work in ``work_dir``, new or left by an interrupted run of the same kind.

    ``text`` is a hash of the calibration text. Raises `FileExistsError` if ``work_dir`` holds a model, or an
    interrupted run of another command or with other settings: names these.
    """
    if (work_dir / "config.json").exists():
        raise FileExistsError(f"{work_dir} holds a model already: choose another --work-dir")
    scratch = work_dir / f".{command}"
    others = sorted(path for path in work_dir.glob(".*/settings.json") if path.parent != scratch)
    if others:
        raise FileExistsError(
            f"{work_dir} holds an interrupted run of {others[0].parent.name[1:]}: continue that, choose another "
            f"--work-dir, or delete {others[0].parent}"
        )
    run = {"model": str(model_dir), "weights": _state_of(model_dir), "text": text, **asdict(settings)}
    run = {key: value for key, value in run.items() if key not in _CHANGE_NOTHING}
    settings_file = scratch / "settings.json"
    if not settings_file.exists():
        scratch.mkdir(parents=True, exist_ok=True)
        unfinished = settings_file.with_suffix(".part")
        unfinished.write_text(json.dumps(run), encoding="utf-8")
        unfinished.replace(settings_file)
        return scratch
    old: dict[str, Any] = json.loads(settings_file.read_text(encoding="utf-8"))
    changed = sorted(key for key in run if old.get(key) != run[key])
    if changed:
        raise FileExistsError(
            f"{work_dir} holds an interrupted run that differs in {', '.join(changed)}: continue it with the same "
            f"settings, choose another --work-dir, or delete {scratch}"
        )
    logger.info("continuing the interrupted run in %s", scratch)
    return scratch


def _state_of(model_dir: Path) -> str:
    files = sorted(model_dir.glob("*.safetensors"))
    return repr([(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files])
