"""A Triton that answers every request with the same tokens as fast as it can, to measure what is in front of it."""

import argparse
import struct
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

MODEL = "fake"
READY = "fake engine is ready"


class FakeEngine(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Streams `tokens` responses to each request; the bytes are made once.

    Parameters
    ----------
    tokens
        Responses a request.
    """

    def __init__(self, tokens: int) -> None:
        self._responses = [_response(" word", "", 1)] * (tokens - 1) + [_response(" word", "length", tokens)]

    def ServerReady(self, request: Any, context: Any) -> Any:
        """Say that everything is ready."""
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelConfig(self, request: Any, context: Any) -> Any:
        """Report the model's name."""
        config = model_config_pb2.ModelConfig(name=request.name)
        config.parameters["model_name"].string_value = MODEL
        return service_pb2.ModelConfigResponse(config=config)

    def ModelStreamInfer(self, request_iterator: Any, context: Any) -> Iterator[Any]:
        """Answer each request."""
        for request in request_iterator:
            if all(tensor.name != "STOP" for tensor in request.inputs):
                yield from self._responses


def _response(text: str, finish_reason: str, count: int) -> Any:
    response = service_pb2.ModelInferResponse(model_name="ensemble")
    tensors = {
        "text_output": ("BYTES", struct.pack("<I", len(text)) + text.encode()),
        "finish_reason": ("BYTES", struct.pack("<I", len(finish_reason)) + finish_reason.encode()),
        "input_token_len": ("INT32", struct.pack("<i", 8)),
        "generate_token_len": ("INT32", struct.pack("<i", count)),
    }
    for name, (datatype, raw) in tensors.items():
        response.outputs.add(name=name, datatype=datatype, shape=[1, 1])
        response.raw_output_contents.append(raw)
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=512)
    arguments = parser.parse_args()
    server = grpc.server(futures.ThreadPoolExecutor(256))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(FakeEngine(arguments.tokens), server)
    server.add_insecure_port(f"127.0.0.1:{arguments.port}")
    server.start()
    print(READY, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
