"""Flags that several profile tools share."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lmdeploy.cli.options import SETTINGS, add_setting
from lmdeploy.cli.options import positive as positive
from lmdeploy.cli.parser import Parser, exit_status
from lmdeploy.messages import GenerationConfig
from lmdeploy.paths import default_model_dir
from lmdeploy.turbomind.engine_settings import EngineConfig, engine_config_for
from tools.bench.workload import EVERY_TOKEN, Lengths, Request, dataset_requests, random_requests

_ENGINE = ("dtype", "weight_bits", "quant_policy", "tp", "threads", "cache_max_entry_count", "max_prefill_token_num")


def lengths(text: str) -> Lengths:
    """Read a flag such as ``16:256``."""
    try:
        return Lengths.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected N or LOW:HIGH with 1 <= LOW <= HIGH, got {text}") from error


class DatasetAndModel(argparse.Action):
    """Reads ``MODEL`` or ``DATASET MODEL``, as LMDeploy's manual writes it."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        """Keep the model, and the data set if there is one."""
        if len(values) > 2:
            parser.error(f"expected [DATASET] MODEL, got {' '.join(values)}")
        if len(values) == 2:
            namespace.dataset = Path(values[0])
        if values:
            namespace.model_path = values[-1]


def parser(description: str, *, takes_dataset: bool = False) -> argparse.ArgumentParser:
    """Return a parser with what every profile tool takes; options may be written with ``_`` for ``-``.

    ``takes_dataset``: a data set may be before the model.
    """
    made = Parser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    model = str(default_model_dir())
    if takes_dataset:
        made.add_argument(
            "paths",
            nargs="*",
            action=DatasetAndModel,
            default=[],
            metavar="[DATASET] MODEL",
            help="as --dataset, and a Hugging Face directory",
        )
        made.set_defaults(model_path=model)
    else:
        made.add_argument("model_path", nargs="?", default=model, help="Hugging Face directory")
    made.add_argument("--seed", type=int, default=0, help="of the random prompts and lengths")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file too")
    return made


def add_progress(made: argparse.ArgumentParser) -> None:
    """Add the flag of the progress bar."""
    made.add_argument("--disable-tqdm", action="store_true", help="show no progress bar")


def add_engine(made: argparse.ArgumentParser) -> None:
    """Add the flags of the engine in this process."""
    group = made.add_argument_group("engine")
    group.add_argument("--backend", choices=["turbomind", "pytorch"], default="turbomind", help="which engine")
    for name in _ENGINE:
        add_setting(group, SETTINGS[name])
    made.set_defaults(cache_max_entry_count=0.2)


def add_sampling(made: argparse.ArgumentParser) -> None:
    """Add the flags that say how tokens are chosen."""
    group = made.add_argument_group("sampling")
    group.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    group.add_argument("--top-p", type=float, default=1.0)
    group.add_argument("--top-k", type=int, default=50)


def add_workload(made: argparse.ArgumentParser) -> None:
    """Add the flags of a random workload."""
    group = made.add_argument_group("workload")
    group.add_argument("--num-prompts", type=positive, default=48)
    group.add_argument("--concurrency", type=positive, default=16, help="most requests open at a time")
    group.add_argument("--prompt-tokens", type=lengths, default=Lengths(16, 128), metavar="N|LOW:HIGH")
    group.add_argument("--completion-tokens", type=lengths, default=Lengths(32, 128), metavar="N|LOW:HIGH")
    group.add_argument("--dataset", type=Path, help="ShareGPT-style JSON whose first questions are the prompts")


def engine_config(arguments: argparse.Namespace, batch: int) -> EngineConfig:
    """Return the engine config the flags describe, with room for a batch of that size.

    Raises `ValueError` if the engine has no such setting, or not this value of it.
    """
    given = {name: getattr(arguments, name) for name in _ENGINE if getattr(arguments, name) is not None}
    try:
        return engine_config_for(None, arguments.backend, {**EVERY_TOKEN, **given, "max_batch_size": batch})
    except TypeError as error:
        raise ValueError(f"--backend {arguments.backend}: {error}") from error


def engine_report(config: EngineConfig) -> dict[str, Any]:
    """Return the report's fields of an engine config; PyTorch's has no ``weight_bits``."""
    names = ("dtype", "weight_bits", "quant_policy", "tp")
    return {name: getattr(config, name) for name in names if hasattr(config, name)}


def sampling(arguments: argparse.Namespace) -> GenerationConfig:
    """Return the generation config the flags describe."""
    return GenerationConfig(
        do_sample=arguments.temperature > 0,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        random_seed=arguments.seed,
    )


def requests(arguments: argparse.Namespace) -> list[Request]:
    """Return the workload the flags describe."""
    if arguments.dataset is not None:
        return dataset_requests(arguments.dataset, arguments.num_prompts, arguments.completion_tokens, arguments.seed)
    return random_requests(arguments.num_prompts, arguments.prompt_tokens, arguments.completion_tokens, arguments.seed)


def run(main: Callable[[], int | None]) -> None:
    """Run a tool, and exit; what went wrong is one line, not a traceback, where the user can mend it."""
    path = Path(sys.argv[0])
    sys.exit(exit_status(path.parent.name if path.stem == "__main__" else path.stem, main))
