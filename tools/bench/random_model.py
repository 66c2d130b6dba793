"""Checkpoints of well-known shapes with random weights, to measure speed where no real one is at hand.

``python -m tools.bench.random_model llama-8b DIRECTORY`` writes one.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tools.bench import arguments as flags
from tools.bench.shapes import SHAPES

_SPREAD = 0.02  # of the random weights
_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def write(shape: str, directory: Path, device: str = "cpu") -> Path:
    """Write a bfloat16 checkpoint, a file a layer, and a tokenizer whose tokens are bytes, with a chat template.

    Parameters
    ----------
    shape
        One of :data:`tools.bench.shapes.SHAPES`.
    directory
        Made if missing.
    device
        Where torch draws the numbers; ``cuda`` is much faster.

    Returns
    -------
    Path
        ``directory``.
    """
    import torch
    import transformers
    from safetensors.torch import save_file

    architecture = SHAPES[shape].architecture
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**SHAPES[shape].config, bos_token_id=256, eos_token_id=257, dtype="bfloat16")
    config.architectures = [architecture]
    with torch.device("meta"):
        empty = model_class(config).state_dict()
    if config.tie_word_embeddings:
        empty.pop("lm_head.weight", None)
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    transformers.GenerationConfig.from_model_config(config).save_pretrained(directory)
    write_tokenizer(directory)

    files: dict[str, dict[str, Any]] = {}
    for name, tensor in empty.items():
        layer = name.partition("layers.")[2].partition(".")[0]
        files.setdefault(f"model-{layer or 'rest'}.safetensors", {})[name] = tensor.shape
    index = {name: file for file, tensors in files.items() for name in tensors}
    generator = torch.Generator(device).manual_seed(0)
    for file, shapes in files.items():
        tensors = {
            name: (1.0 if len(size) == 1 and "norm" in name else 0.0)
            + torch.randn(size, generator=generator, device=device, dtype=torch.bfloat16) * _SPREAD
            for name, size in shapes.items()
        }
        save_file({name: tensor.cpu() for name, tensor in tensors.items()}, directory / file, {"format": "pt"})
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return directory


def write_tokenizer(directory: Path, words: int = 0) -> None:
    """Write a tokenizer of 258 tokens, bytes and a begin and end, and a chat template.

    With ``words`` more tokens, which no text is read as, whatever a model of random weights says is text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*letters, *(f"Ġw{number}" for number in range(words))]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=_CHAT_TEMPLATE
    ).save_pretrained(directory)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Write a checkpoint with random weights.")
    parser.add_argument("shape", choices=[name for name, shape in SHAPES.items() if shape.weights == "bfloat16"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--device", default="cpu", help="where the numbers are drawn: cpu or cuda (default: cpu)")
    arguments = parser.parse_args()
    print(write(arguments.shape, arguments.directory, arguments.device))


if __name__ == "__main__":
    flags.run(main)
