"""Selected chat templates of a model, stored alongside its tokenizer in an engine directory.

The choice depends on the name of the checkpoint's directory, which an engine directory no longer has.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_FILE = "chosen_templates.json"


@dataclass(frozen=True)
class ChosenTemplates:
    """Names of chat templates."""

    builtin: str  # the one for a model that brings no template along
    # The one that the Triton clients of LMDeploy up to 0.5.1 shall use (``lmdeploy.templates.older_clients``)
    older_clients: str

    def write(self, directory: Path) -> None:
        """Write the names into a folder of tokenizer files."""
        (directory / _FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, directory: Path) -> "Self | None":
        """Return the names in a folder of tokenizer files; None if there are none."""
        file = directory / _FILE
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
