"""The files of a checkpoint alongside its weights, and what distinguishes one state of a checkpoint from another."""

import shutil
from pathlib import Path

_TEXTS = (
    "config.json", "generation_config.json", "*processor_config.json", "tokenizer*", "special_tokens_map.json",
    "added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "*.tiktoken", "*.model",
)  # fmt: skip


def copy_texts(model_dir: Path, target: Path) -> None:
    """Copy a checkpoint's tokenizer, chat template and config files."""
    target.mkdir(parents=True, exist_ok=True)
    for pattern in _TEXTS:
        for file in model_dir.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, target / file.name)


def state_of(model_dir: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of each file of a checkpoint, in order."""
    stats = []
    for file in sorted(model_dir.iterdir()):
        if file.is_file() and not file.name.startswith("."):
            status = file.stat()
            stats.append((file.name, status.st_size, status.st_mtime_ns))
    return stats
