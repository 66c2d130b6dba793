"""``lmdeploy serve triton_client`` against the real thing."""

import signal

from lmdeploy.serve.tritonserver import TritonServer
from tests.support.commands import TerminalCommand
from tests.support.metrics import engine_metrics
from tests.support.servers import generated
from tests.support.waiting import eventually_sync

TURNS = ["What is the capital of France?", "And of Italy?"]


def stateless_response(server: TritonServer, messages: list[dict[str, str]]) -> str:
    return str(generated(server, messages, max_new_tokens=512, temperature=0.0)["text_output"])


def test_a_session_answers_as_the_whole_conversation_would(triton_server: TritonServer) -> None:
    messages: list[dict[str, str]] = []
    for turn in TURNS:
        messages.append({"role": "user", "content": turn})
        messages.append({"role": "assistant", "content": stateless_response(triton_server, messages)})
    command = ("serve", "triton_client", triton_server.grpc_address, "--temperature", "0")
    with TerminalCommand(*command) as terminal:
        for turn in (*TURNS, "end", TURNS[1], "exit"):
            terminal.type(turn)
        assert terminal.status(60) == 0
    _, first, second, _, alone, _ = terminal.output.split(">>> ")
    assert [first.strip(), second.strip()] == [messages[1]["content"], messages[3]["content"]]
    assert alone.strip() == stateless_response(triton_server, [{"role": "user", "content": TURNS[1]}])
    eventually_sync(lambda: engine_metrics(triton_server)["cache_blocks_used"] == 0)


def test_ctrl_c_stops_the_response_in_the_engine_and_the_chat_goes_on(triton_server: TritonServer) -> None:
    command = ("serve", "triton_client", triton_server.grpc_address, "--temperature", "0", "--max-new-tokens", "4000")
    with TerminalCommand(*command) as terminal:
        terminal.type("Write a very long story about the sea.")
        terminal.wait_for(" the ", 3)
        terminal.process.send_signal(signal.SIGINT)
        terminal.wait_for("(stopped)")
        eventually_sync(lambda: engine_metrics(triton_server)["requests_running"] == 0)
        terminal.type("end")
        terminal.type(TURNS[0])
        terminal.wait_for("The capital of France is Paris.")
        terminal.type("exit")
        assert terminal.status() == 0
    assert "Traceback" not in terminal.output
