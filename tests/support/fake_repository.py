"""A model repository whose engine is a few lines of Python: for tests of the real tritonserver without our engine."""

from pathlib import Path

_TENSOR = '{{ name: "{name}" data_type: TYPE_{kind} dims: [ 1 ]{optional} }}'
_INPUTS = {"text_input": "STRING", "stream": "BOOL"}
_OUTPUTS = {
    "text_output": "STRING",
    "finish_reason": "STRING",
    "input_token_len": "INT32",
    "generate_token_len": "INT32",
    "index": "INT32",
}
_MODEL = '''
import json

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    """Sends the prompt back word by word; the prompt "bad" is refused."""

    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            words = pb.get_input_tensor_by_name(request, "text_input").as_numpy()[0, 0].decode().split()
            if words == ["bad"]:
                code = "INVALID_ARGUMENT: " if json.loads(request.parameters()).get("error_codes") else ""
                error = pb.TritonError(code + "text_input must not be bad", pb.TritonError.INVALID_ARG)
                sender.send(pb.InferenceResponse(error=error), flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            for count, word in enumerate(words, 1):
                last = count == len(words)
                outputs = {
                    "text_output": np.array([[word.encode()]], object),
                    "finish_reason": np.array([[b"stop" if last else b""]], object),
                    "input_token_len": np.array([[len(words)]], np.int32),
                    "generate_token_len": np.array([[count]], np.int32),
                    "index": np.array([[0]], np.int32),
                }
                response = pb.InferenceResponse([pb.Tensor(name, value) for name, value in outputs.items()])
                sender.send(response, flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0)
'''


def write_fake_repository(root: Path, source: str = _MODEL) -> Path:
    """Write ``turbomind`` (Python, `source`) and an ``ensemble`` around it into `root`."""
    _write_model(root / "turbomind", 'backend: "python" model_transaction_policy { decoupled: true }', source)
    maps = [f'input_map {{ key: "{name}" value: "{name}" }}' for name in _INPUTS]
    maps += [f'output_map {{ key: "{name}" value: "{name}" }}' for name in _OUTPUTS]
    step = f'step [ {{ model_name: "turbomind" model_version: -1 {" ".join(maps)} }} ]'
    _write_model(root / "ensemble", f'platform: "ensemble" ensemble_scheduling {{ {step} }}', None)
    return root


def _write_model(folder: Path, kind: str, source: str | None) -> None:
    (folder / "1").mkdir(parents=True)
    inputs, outputs = _tensors(_INPUTS, " optional: true"), _tensors(_OUTPUTS, "")
    config = f'name: "{folder.name}" max_batch_size: 1 {kind} input [ {inputs} ] output [ {outputs} ]'
    if source is not None:
        config += " instance_group [ { count: 1 kind: KIND_CPU } ]"
        (folder / "1" / "model.py").write_text(source, encoding="utf-8")
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")


def _tensors(kinds: dict[str, str], optional: str) -> str:
    return ", ".join(_TENSOR.format(name=name, kind=kind, optional=optional) for name, kind in kinds.items())
