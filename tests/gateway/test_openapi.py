"""The OpenAPI document, and the server held against it by schemathesis with every check it has.

The number of cases is GATEWAY_SCHEMATHESIS_CASES for each operation; by default few, because of the time it takes.
`make test` has a sample of these, always the same one.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from openai_gateway.app import ROUTERS
from openai_gateway.registry import ENDPOINTS
from tests.gateway.conftest import MODEL

CASES = int(os.environ.get("GATEWAY_SCHEMATHESIS_CASES", "12"))
SAMPLE = 2

# `model` is one of the served ones in most cases, else nearly every case would end with 404. A case whose fields do not
# fit together (tool_choice without tools, ...) is refused with 400, which no JSON schema can say beforehand.
# Paths for administrators are refused with 403 before their body is read.
# Whole numbers written as 5.0 are integers to JSON schema; here they are of the wrong type, 422.
HOOKS = f'''
import random
import schemathesis

chance = random.Random(1)

@schemathesis.hook
def map_body(ctx, body):
    if isinstance(body, dict) and isinstance(body.get("model"), str) and body["model"] and chance.random() < 0.9:
        body["model"] = "{MODEL}"
    return body
'''
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = [200, 400, 401, 403, 404, 413, 422]
[checks.negative_data_rejection]
expected-statuses = [400, 401, 403, 404, 405, 406, 413, 415, 422, "5xx"]
"""


def test_the_registry_has_every_route_once() -> None:
    routes = {getattr(route, "path_format", "") for router in ROUTERS for route in router.routes}
    assert sorted(endpoint.path for endpoint in ENDPOINTS) == sorted(routes)


def test_the_document_names_every_endpoint_and_its_errors(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    aliases = {"/rerank", "/v2/rerank", "/score", "/classify", "/pooling"}
    assert set(document["paths"]) == {endpoint.path for endpoint in ENDPOINTS} - aliases
    for path in document["paths"].values():
        for operation in path.values():
            assert {"4XX", "5XX"} <= set(operation["responses"])
            assert "422" not in operation["responses"]
    fields: dict[str, Any] = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert {"n", "logprobs", "logit_bias", "tools", "tool_choice", "response_format", "session_id"} <= set(fields)


def test_no_case_schemathesis_thinks_of_breaks_the_server(
    http: httpx.Client, url: str, tmp_path: Path, *, all_cases: bool
) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--checks", "all"]
    # The phase "coverage" goes through every keyword of each schema, three quarters of the time.
    sample = ["--max-examples", str(SAMPLE), "--seed", "1", "--phases", "examples,fuzzing,stateful"]
    command += ["--max-examples", str(CASES)] if all_cases else sample
    command += ["--request-timeout", "20", "--continue-on-failure", "--no-color"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=3000,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert http.get("/health").status_code == 200
