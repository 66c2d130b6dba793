"""aider, which edits a file without asking anybody. Prints what the file holds then as JSON."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OPTIONS = [
    *("--yes-always", "--no-git", "--no-check-update", "--analytics-disable", "--no-show-model-warnings"),
    *("--no-show-release-notes", "--no-pretty", "--no-gitignore", "--edit-format", "whole", "--map-tokens", "0"),
]
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "greeting.py"
    file.write_text("print('Hello')\n")
    env = os.environ | {"OPENAI_API_BASE": sys.argv[1], "OPENAI_API_KEY": "k", "HOME": folder}
    env |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_COLOR": "1"}
    message = "Greet the whole world."
    command = [sys.executable, "-m", "aider", "--model", "openai/fake-model", *OPTIONS, "--message", message, file.name]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True, timeout=100)
    print(json.dumps({"file": file.read_text(), "applied": "Applied edit to greeting.py" in done.stdout}))
