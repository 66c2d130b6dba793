"""The decoder layers of a checkpoint, one in memory at a time, run by ``transformers``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.turbomind.checkpoint import read_config
from lmdeploy.turbomind.safetensors_index import SafetensorsIndex, linked_gguf_files, read_checkpoint

PREFIX = "model.layers."


class WeightFiles:
    """The tensors of a checkpoint, read when asked for.

    Raises
    ------
    CheckpointError
        If files are missing or broken.
    UnsupportedModelError
        If the weights are a GGUF file.
    """

    def __init__(self, directory: Path) -> None:
        self.index: SafetensorsIndex = read_checkpoint(directory)
        if self.index.problems:
            raise CheckpointError(directory, self.index.problems)
        if linked_gguf_files(directory):
            raise UnsupportedModelError("GGUF files are not made smaller: take the model as safetensors")
        self._files: dict[int, Any] = {}

    def tensor(self, name: str) -> Tensor:
        """Return a tensor, in the type it is stored in."""
        number = self.index.tensors[name].file
        if number not in self._files:
            self._files[number] = safe_open(str(self.index.files[number]), "pt")
        tensor: Tensor = self._files[number].get_tensor(name)
        return tensor

    def below(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin so, without that beginning."""
        names = [name for name in self.index.tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.tensor(name) for name in names}


class _Recorder(nn.Module):  # type: ignore[misc]
    """Stands in a layer's place, notes how it is called and hands its input on."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, dict[str, Any]]] = []
        if hasattr(layer, "attention_type"):  # which mask `transformers` gives it
            self.attention_type = layer.attention_type

    def forward(self, hidden_states: Tensor, **settings: Any) -> Tensor:
        """Note the call."""
        self.calls.append((hidden_states, settings))
        return hidden_states


class DecoderLayers:
    """The decoder of a causal language model without the weights of its layers.

    Parameters
    ----------
    directory
        A Hugging Face directory.
    device
        Where to compute, in float32.

    Raises
    ------
    UnsupportedModelError
        If ``transformers`` has no such model, or it keeps its layers elsewhere.
    CheckpointError
        If the checkpoint is incomplete.
    """

    def __init__(self, directory: Path, device: torch.device) -> None:
        from transformers import AutoModelForCausalLM

        self.files = WeightFiles(directory)
        self.device = device
        config = _config_of(directory)
        self.name: str = (config.architectures or ["?"])[0]
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
        except ValueError as error:
            raise UnsupportedModelError(f"{self.name}: {' '.join(str(error).split())}") from error
        decoder: Any = getattr(model, "model", None)
        if not all(hasattr(decoder, part) for part in ("layers", "embed_tokens", "norm", "rotary_emb")):
            raise UnsupportedModelError(f"{self.name} cannot be quantized: it keeps its layers elsewhere than Llama")
        if type(decoder.embed_tokens) is not nn.Embedding:
            raise UnsupportedModelError(f"{self.name} cannot be quantized: its embeddings are more than a table")
        self._decoder = decoder
        self._decoder.eval().requires_grad_(False)
        self._decoder.rotary_emb = type(self._decoder.rotary_emb)(config).to(device)
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def __len__(self) -> int:
        return len(self._decoder.layers)

    def shape_of(self, number: int) -> nn.Module:
        """Return a layer without weights."""
        layer: nn.Module = self._decoder.layers[number]
        return layer

    def layer(self, number: int) -> nn.Module:
        """Return a layer with its weights, in float32. The caller drops it."""
        prefix = f"{PREFIX}{number}."
        weights = {name: tensor.float() for name, tensor in self.files.below(prefix).items()}
        module: nn.Module = type(self._decoder.layers[number])(self._decoder.config, number)
        module = module.to(self.device).eval().requires_grad_(False)
        missing, unknown = module.load_state_dict(weights, strict=False)
        unknown = [name for name in unknown if "rotary_emb" not in name]
        if missing or unknown:
            problems = [f"tensor {prefix}{name} is missing" for name in missing]
            problems += [f"tensor {prefix}{name} is unknown to {self.name}" for name in unknown]
            raise CheckpointError(self.files.index.files[0].parent, problems)
        return module

    def calls(self, batches: list[Tensor]) -> "LayerCalls":
        """Return how the layers are called for batches of token ids ``[samples, tokens]``."""
        embedding = self._decoder.embed_tokens
        embedding.to_empty(device=self.device)
        embedding.load_state_dict({"weight": self.files.tensor("model.embed_tokens.weight").float()})
        recorders = [_Recorder(layer) for layer in self._decoder.layers]
        layers, norm = self._decoder.layers, self._decoder.norm
        self._decoder.layers, self._decoder.norm = nn.ModuleList(recorders), nn.Identity()
        try:
            with torch.no_grad():
                for ids in batches:
                    self._decoder(input_ids=ids.to(self.device), use_cache=False)
        finally:
            self._decoder.layers, self._decoder.norm = layers, norm
            embedding.to_empty(device="meta")
        hidden = [call[0] for call in recorders[0].calls]
        return LayerCalls(hidden, [[call[1] for call in recorder.calls] for recorder in recorders])


def _config_of(directory: Path) -> Any:
    from transformers import AutoConfig

    raw = read_config(directory)
    try:
        return AutoConfig.from_pretrained(directory, trust_remote_code=False)
    except ValueError as error:
        if not raw.get("auto_map"):
            raise UnsupportedModelError(f"{directory}: {' '.join(str(error).split())}") from error
        name = (raw.get("architectures") or ["?"])[0]
        raise UnsupportedModelError(
            f"{name} cannot be quantized: `transformers` does not have it, and the checkpoint's own code is never run"
        ) from error


class LayerCalls:
    """What the layers work on: the hidden states of each batch, and each layer's other arguments."""

    def __init__(self, hidden: list[Tensor], settings: list[list[dict[str, Any]]]) -> None:
        self.hidden = hidden
        self._settings = settings

    def run(self, number: int, layer: nn.Module) -> Iterator[Tensor]:
        """Yield what layer ``number`` makes of each batch's hidden states."""
        for hidden, settings in zip(self.hidden, self._settings[number], strict=True):
            output = layer(hidden, **settings)
            yield output[0] if isinstance(output, tuple) else output
