"""guidellm, which measures a server. Prints what it counted as JSON."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REQUESTS = 4
with tempfile.TemporaryDirectory() as folder:
    prompts = Path(folder) / "prompts.txt"
    prompts.write_text("\n".join(f"What is the capital of country {i}?" for i in range(REQUESTS)) + "\n")
    report = Path(folder) / "report.json"
    target = sys.argv[2].removesuffix("/v1")
    options = {
        "--backend": f"kind=openai_http,target={target},model=fake-model,api_key=k,request_format=/v1/chat/completions",
        "--profile": "kind=synchronous",
        "--constraint": f"kind=max_requests,count={REQUESTS}",
        "--tokenizer": f"kind=huggingface_auto,model={sys.argv[1]}",
        "--data": f"kind=text_file,path={prompts}",
        "--output": f"kind=json,path={report}",
    }
    command = [str(Path(sys.executable).parent / "guidellm"), "run", "--disable-console-interactive"]
    command += [part for option in options.items() for part in option]
    env = os.environ | {"HOME": folder, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=110)
    assert report.exists(), (done.stdout + done.stderr)[-3000:]
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    answered = benchmark["requests"]["successful"]
    print(
        json.dumps(
            {
                "answered": len(answered),
                "failed": len(benchmark["requests"]["errored"]),
                "outputs": sorted({request["output"] for request in answered}),
                "output_tokens": [request["output_metrics"]["text_tokens"] for request in answered],
            }
        )
    )
