"""Simon Willison's llm, with a server from extra-openai-models.yaml. Prints what came back as JSON."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = """
- model_id: ours
  model_name: fake-model
  api_base: {url}
  api_key_name: ours
  supports_tools: true
  supports_schema: true
"""
TOOL = '''
def get_weather(location: str) -> str:
    """Tell the weather."""
    return f"Sunny in {location}"
'''

reported: list[str] = []
with tempfile.TemporaryDirectory() as home:
    (Path(home) / "extra-openai-models.yaml").write_text(MODELS.format(url=sys.argv[1]))
    (Path(home) / "keys.json").write_text('{"ours": "k"}')

    def llm(*arguments: str) -> str:
        """Run the command, as a user does."""
        command = [sys.executable, "-m", "llm", *arguments]
        env = os.environ | {"LLM_USER_PATH": home}
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
        reported.append(done.stderr)
        return done.stdout.strip()

    results = {
        "answer": llm("-m", "ours", "--no-stream", "Hello"),
        "stream": llm("-m", "ours", "Hello"),
        "tools": [llm("-m", "ours", "--functions", TOOL, "--td", "Weather?"), "Sunny in Boston" in reported[-1]],
        "person": json.loads(llm("-m", "ours", "--schema", "name, age int", "Who?")),
        "continued": llm("-c", "And now?"),
    }
print(json.dumps(results))
