"""Checkpoints of well-known shapes with random weights, to measure speed where no real one is at hand.

``python -m tools.bench.random_model llama-8b DIRECTORY`` writes one.
"""

import argparse
from pathlib import Path

from tools.bench import arguments as flags
from tools.bench.shapes import SHAPES

_CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


def write(shape: str, directory: Path, device: str = "cpu") -> Path:
    """Write a bfloat16 checkpoint, and a tokenizer whose tokens are bytes, with a chat template.

    ``shape``: one of :data:`tools.bench.shapes.SHAPES`. ``directory``: made if missing. ``device``: where torch draws
    the numbers; ``cuda`` is much faster. Returns ``directory``.
    """
    import torch
    import transformers

    known = SHAPES[shape]
    model_class = getattr(transformers, known.architecture)
    config = model_class.config_class(**known.config, bos_token_id=256, eos_token_id=257)
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    write_tokenizer(directory)
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
