"""Unquantized source model, one decoder layer in memory at a time."""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from lmdeploy.errors import CheckpointError, UnsupportedModelError
from lmdeploy.lite.forward.layer import Carried, run_layer
from lmdeploy.lite.forward.parts import LayerWeights
from lmdeploy.lite.source_rows import RowMap, Tree, evaluate, loads_in, operations_in
from lmdeploy.turbomind.checkpoint import describe, read_config
from lmdeploy.turbomind.rewritten import readable_checkpoint
from lmdeploy.turbomind.safetensors_index import linked_gguf_files, read_checkpoint
from lmdeploy.turbomind.spec import ModelSpec

_LAYER = re.compile(r"layers\.(\d+)\.(.*)")


class SourceModel:
    """A model that is not quantized yet.

    Raises `UnsupportedModelError` if the engine does not serve the model, or its layers are stored in a way that
    quantized files have no form for, and `CheckpointError` if the checkpoint is incomplete, or quantized already.
    ``directory``: a Hugging Face directory, or one in another form that the engine reads.
    """

    def __init__(self, directory: Path, device: torch.device) -> None:
        self.directory = readable_checkpoint(directory)  # where the checkpoint is as safetensors
        self.device = device  # where to compute, in float32
        if given := read_config(self.directory).get("quantization_config"):
            form = given.get("quant_method") if isinstance(given, dict) else given
            raise CheckpointError(
                directory, [f"is quantized already ({form}): serve it as it is, or give the original model"]
            )
        if linked_gguf_files(self.directory):
            raise UnsupportedModelError("GGUF files cannot be quantized: take the model as safetensors")
        description = describe(self.directory, directory.name)
        self.spec: ModelSpec = description.spec  # what the engine knows of the model
        if self.spec.encoder is not None:
            raise UnsupportedModelError("encoders cannot be quantized: serve them with --weight-bits")
        self.name = self.spec.architecture
        if self.spec.streams or self.spec.hyper_connections:
            raise UnsupportedModelError(f"{self.name} has several residual streams: serve it with --weight-bits 4 or 8")
        if self.spec.shared_blocks:
            raise UnsupportedModelError(f"{self.name} has layers that share blocks: serve it with --weight-bits 4 or 8")
        if self.spec.moe is not None and self.spec.moe.latent_size:
            raise UnsupportedModelError(
                f"{self.name} has experts in a smaller space: serve it with --weight-bits 4 or 8"
            )
        if self.spec.images is not None and self.spec.images.has_own_weights:
            raise UnsupportedModelError(
                f"{self.name} has weights for rows of images alone: serve it with --weight-bits 4 or 8"
            )
        self.files = read_checkpoint(self.directory)
        self.shapes = {name: info.shape for name, info in self.files.tensors.items()}
        self._outside: dict[str, Tree] = {}
        self._layers: list[dict[str, Tree]] = [{} for _ in range(self.spec.num_layers)]
        for name, tree in description.manifest.tensors.items():
            found = _LAYER.fullmatch(name)
            if found is None:
                self._outside[name] = tree
            else:
                self._layers[int(found[1])][found[2]] = tree
        self._reject_layouts()

    def __len__(self) -> int:
        return len(self._layers)

    def trees(self, number: int) -> Mapping[str, Tree]:
        """Return the expressions of a layer's tensors by the engine's names."""
        return self._layers[number]

    def layer(self, number: int) -> LayerWeights:
        """Return a layer's tensors in float32. The caller drops them."""
        return LayerWeights({name: self._evaluate(tree) for name, tree in self._layers[number].items()})

    def run(self, number: int, weights: LayerWeights, hidden: Tensor) -> Tensor:
        """Return the output of layer ``number`` with these weights for ``[batch, tokens, row_width]``."""
        return run_layer(self.spec, weights, number, hidden)

    @property
    def row_width(self) -> int:
        """Numbers of a token's row between layers."""
        return Carried(self.spec).width

    def embedded(self, batches: list[Tensor]) -> list[Tensor]:
        """Return the first layer's inputs for batches of token ids ``[samples, tokens]``."""
        made = [self._outside_tensor("token_embedding")[ids].float() * self.spec.embedding_scale for ids in batches]
        if self.spec.learned_positions:
            positions = self._outside_tensor("position_embedding").float()
            made = [rows + positions[: rows.shape[1]] for rows in made]
        if self.spec.has_embedding_norm:
            norm = {name: self._evaluate(tree) for name, tree in self._outside.items() if "embedding_norm" in name}
            made = [LayerWeights(norm).norm("embedding_norm", rows, self.spec.norm) for rows in made]
        return [self._carried(ids, rows) for ids, rows in zip(batches, made, strict=True)]

    def _carried(self, ids: Tensor, rows: Tensor) -> Tensor:
        """Return the first layer's rows with what later layers take besides the residual stream."""
        if layer_input := self.spec.layer_input:
            outside = LayerWeights({n: self._evaluate(t).cpu() for n, t in self._outside.items() if "inputs.n" in n})
            project = self._outside_tensor("layer_inputs.project.weight").float()
            made = (rows @ project.T * self.spec.hidden_size**-0.5).unflatten(-1, (-1, layer_input.size))
            made = outside.norm("layer_inputs.norm", made, self.spec.norm).flatten(-2)
            made = made + self._outside_tensor("layer_inputs.table")[ids].float() * layer_input.size**0.5
            rows = torch.cat((rows, made * 0.5**0.5), -1)
        return functional.pad(rows, (0, self.row_width - rows.shape[-1]))

    def max_text_len(self) -> int:
        """Return how many tokens the model reads without its positions being stretched."""
        lengths = [self.spec.max_position_embeddings]
        for attention in (self.spec.attention, *self.spec.attentions):
            lengths += [length for length in (attention.logn_length, attention.temperature_length) if length]
        return min(lengths + [rope.stretch.length for rope in self.spec.ropes if rope.stretch is not None])

    def tensors_of_layers(self) -> set[str]:
        """Return the names of the checkpoint's tensors that layers are made of."""
        return {name for layer in self._layers for tree in layer.values() for name in loads_in(tree)}

    def tensors_of_decoder(self) -> set[str]:
        """Return the names of the checkpoint's tensors that the decoder reads, in layers or not."""
        return self.tensors_of_layers() | {name for tree in self._outside.values() for name in loads_in(tree)}

    def linears_outside(self) -> set[str]:
        """Return the names of the checkpoint's matrices outside layers that are no table or output layer."""
        trees = [tree for name, tree in self._outside.items() if name.endswith("project.weight")]
        return {name for tree in trees for name in loads_in(tree)}

    def row_map(self, number: int, name: str) -> RowMap:
        """Return where the rows of a layer's tensor are in the checkpoint."""
        return RowMap(self._layers[number][name], self.shapes)

    def _outside_tensor(self, name: str) -> Tensor:
        return evaluate(self._outside[name], self.files.tensor, lambda shape: shape)

    def _evaluate(self, tree: Tree) -> Tensor:
        return evaluate(tree, lambda name: self.files.tensor(name).float(), lambda shape: shape).to(self.device)

    def _reject_layouts(self) -> None:
        for layer in self._layers:
            for name, tree in layer.items():
                if "mxfp4" in operations_in(tree):
                    raise UnsupportedModelError(
                        f"{self.name} cannot be quantized: its experts are 4-bit floats (MXFP4) already"
                    )
                if tree["op"] == "constant":
                    self._reject_layout(f"{name} is no tensor of the checkpoint")
                stacked = [
                    load
                    for load in loads_in(tree)
                    if ".experts." in name and (len(self.shapes[load]) > 2 or not load.endswith((".weight", ".bias")))
                ]
                if stacked:
                    self._reject_layout(f"{stacked[0]} holds all experts of a layer in one tensor")
                turned = tree["args"][0] if tree["op"] == "reshape" else tree
                if turned["op"] == "permute" and turned["args"][0]["op"] == "load":
                    self._reject_layout(f"{turned['args'][0]['name']} is laid out as [in, out]")

    def _reject_layout(self, what: str) -> None:
        raise UnsupportedModelError(
            f"{self.name} cannot be quantized: {what}, which AWQ, GPTQ and W8A8 files have no form for; serve it with "
            "--weight-bits 4 or 8, which rounds while loading"
        )
