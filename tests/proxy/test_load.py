"""Servers behind a proxy, one of them killed under load."""

import asyncio
import signal
import time

import httpx

from lmdeploy.serve.ports import free_ports
from openai_gateway.proxy.settings import ProxySettings
from tests.support.commands import Command
from tests.support.fake_triton import FakeTriton, Received, Script
from tests.support.gateways import running_proxy
from tests.support.waiting import eventually

REQUESTS, AT_A_TIME = 300, 32
MESSAGES = [{"role": "user", "content": "Hello"}]
REPLY = "The capital of France is Paris."


async def test_no_request_is_lost_when_a_node_dies_and_returns() -> None:
    with FakeTriton("m") as fake:

        def a_little_later(_: Received) -> Script:
            time.sleep(0.02)  # what an engine needs: some requests are under way when the node dies
            return Script()

        fake.script = a_little_later
        first_port, second_port = free_ports(2)
        with running_proxy(ProxySettings(check_seconds=0.5, return_seconds=0.2)) as url:

            def node(port: int) -> Command:
                where = ["--server-name", "127.0.0.1", "--server-port", str(port), "--proxy-url", url]
                return Command("serve", "gateway", "--triton-address", fake.address, *where)

            outcomes: list[str] = []
            at_a_time = asyncio.Semaphore(AT_A_TIME)
            limits = httpx.Limits(max_connections=AT_A_TIME)
            async with httpx.AsyncClient(base_url=url, trust_env=False, limits=limits) as http:

                async def post(number: int) -> None:
                    async with at_a_time:
                        body = {"model": "m", "messages": MESSAGES, "stream": number % 2 == 0}
                        response = await http.post("/v1/chat/completions", json=body)
                        if response.status_code != 200:
                            outcomes.append(f"{response.status_code} {response.text}")
                        elif number % 2:
                            outcomes.append(
                                "whole" if response.json()["choices"][0]["message"]["content"] == REPLY else "bad"
                            )
                        else:
                            outcomes.append("whole" if response.text.endswith("data: [DONE]\n\n") else "cut")

                async def nodes() -> int:
                    return len((await http.get("/nodes/status")).json())

                async def both_there() -> bool:
                    return await nodes() == 2

                async def one_there() -> bool:
                    return await nodes() == 1

                with node(first_port) as first, node(second_port):
                    await eventually(both_there)
                    asking = [asyncio.create_task(post(number)) for number in range(REQUESTS)]
                    await eventually(lambda: len(outcomes) > REQUESTS // 5)
                    await asyncio.to_thread(first.end, signal.SIGKILL)
                    await eventually(one_there)
                    with node(first_port):
                        await asyncio.gather(*asking)
                        await eventually(both_there)
    assert set(outcomes) <= {"whole", "cut"}
    assert outcomes.count("cut") <= AT_A_TIME / 2  # those that were streaming from the node that died
    assert len(outcomes) == REQUESTS
