"""Load of many users, for locust: ``locust -f tools/locustfile.py --host http://localhost:23333``.

Each user asks, reads the streamed response, thinks, and asks again. Besides locust's own metrics it reports TTFT and
inter-token latency.
"""

import os
import random
import time

import orjson
from locust import HttpUser, between, events, task

QUESTIONS = (
    "What is the capital of France?",
    "Name three things to pack for a rainy day.",
    "Explain in two sentences why the sky is blue.",
    "Write a short poem about the sea.",
)
MAX_TOKENS = int(os.environ.get("LOCUST_MAX_TOKENS", "64"))
HEADERS = {"authorization": f"Bearer {os.environ.get('OPENAI_API_KEY')}"}


class ChatUser(HttpUser):
    """Somebody who chats."""

    wait_time = between(0.5, 2)

    def on_start(self) -> None:
        """Ask for the model's id."""
        self.model = self.client.get("/v1/models", headers=HEADERS).json()["data"][0]["id"]

    @task
    def chat(self) -> None:
        """Ask a question and read the response."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": random.choice(QUESTIONS)}],
            "max_tokens": MAX_TOKENS,
            "stream": True,
        }
        begin = last = time.perf_counter()
        tokens = 0
        with self.client.post(
            "/v1/chat/completions", json=body, headers=HEADERS, stream=True, catch_response=True
        ) as response:
            if response.status_code != 200:
                response.failure(f"{response.status_code}: {response.text[:200]}")
                return
            for line in response.iter_lines():
                if not line.startswith(b"data: {"):
                    continue
                chunk = orjson.loads(line[6:])
                if "error" in chunk:
                    response.failure(chunk["error"]["message"])
                    return
                if chunk["choices"] and chunk["choices"][0]["delta"].get("content"):
                    now = time.perf_counter()
                    _report("first token" if tokens == 0 else "next token", now - (begin if tokens == 0 else last))
                    tokens, last = tokens + 1, now
            response.success()


def _report(name: str, seconds: float) -> None:
    events.request.fire(  # type: ignore[no-untyped-call]
        request_type="STREAM", name=name, response_time=seconds * 1000, response_length=0, exception=None, context={}
    )
