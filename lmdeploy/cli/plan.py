"""``lmdeploy plan``: capacity of a machine for a model, and the number of replicas for a load."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from lmdeploy.capacity.devices import DEVICES, Device, device_of
from lmdeploy.capacity.plan import Efficiency, Load, Plan, Storage, plan
from lmdeploy.capacity.sizes import Sizes
from lmdeploy.cli import options

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add the subcommand to the command line."""
    parser = subparsers.add_parser(
        "plan",
        help="Estimate memory, speed and replicas for a model and a load.",
        description=(
            "Estimate memory, speed and replicas for a model and a load from its config.json alone. "
            "docs/deployment/capacity.md describes the method."
        ),
    )
    parser.add_argument(
        "model", metavar="MODEL", help="Name or directory of a model on this machine, or its config.json."
    )
    machine = parser.add_argument_group("machine")
    machine.add_argument("--gpu", metavar="NAME", help=f"GPU: one of {', '.join(DEVICES)}.")
    options.add_numbers(
        machine,
        ("--memory", options.above_0, None, "GB", "Device memory; overrides that of --gpu."),
        ("--bandwidth", options.above_0, None, "GB/S", "Memory bandwidth; overrides that of --gpu."),
        ("--tflops", options.above_0, None, "TFLOP/S", "Matrix multiplication rate; overrides that of --gpu."),
        ("--tp", options.positive, 1, "INT", "Devices per replica."),
        ("--reached-bandwidth", _share, Efficiency.bandwidth, "SHARE", "Share of the bandwidth reached."),
        (
            "--reached-tflops",
            _share,
            Efficiency.operations,
            "SHARE",
            "Share of the multiplication rate reached.",
        ),
    )
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--weight-bits", type=int, choices=(4, 8, 16, 32), default=16, help="Bits per weight (default: %(default)s)."
    )
    engine.add_argument(
        "--quant-policy", type=int, choices=(0, 4, 8), default=0, help="Bits per element of the KV cache; 0: 16."
    )
    cache_share = "Share of the memory left by the weights that the KV cache takes."
    options.add_numbers(
        engine,
        ("--cache-max-entry-count", _share, Storage.cache_share, "SHARE", cache_share),
        ("--cache-dir-bytes", options.above_0, 0, "BYTES", "Size of the cache on disk."),
        ("--disk-bandwidth", options.above_0, 1.0, "GB/S", "Read bandwidth of the disk."),
        ("--max-batch-size", options.positive, 256, "INT", "Maximum number of sequences per step."),
    )
    options.add_numbers(
        parser.add_argument_group("load"),
        ("--prompt", options.above_0, 1024, "TOKENS", "Mean prompt length."),
        ("--output-tokens", options.above_0, 256, "TOKENS", "Mean output length."),
        ("--prefix", _part, 0, "SHARE", "Share of prompt tokens found in the prefix cache."),
        ("--rate", options.above_0, 0, "REQUESTS/S", "Total request rate."),
        ("--token-ms", options.above_0, float("inf"), "MS", "Maximum time per output token."),
        ("--use", _share, Load.use, "SHARE", "Target utilization of a replica."),
    )
    parser.add_argument("--json", action="store_true", help="Print JSON, in seconds and bytes.")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the plan; return the exit status."""
    load = Load(args.prompt, args.output_tokens, args.rate, args.prefix, args.token_ms / 1e3, args.use)
    device = _device(args).times(args.tp)
    sizes = Sizes.read(args.model)
    disk = (args.cache_dir_bytes, args.disk_bandwidth * 1e9)
    storage = Storage(args.weight_bits, args.quant_policy or 16, args.cache_max_entry_count, *disk)
    reached = Efficiency(args.reached_bandwidth, args.reached_tflops)
    made = plan(sizes, device, storage, load, reached, args.max_batch_size)
    if args.json:
        print(json.dumps({"parameters": sizes.parameters, "active": sizes.active, **asdict(made)}))
    else:
        print("\n".join(_lines(sizes, device, load, made)))
    return 0


def _lines(sizes: Sizes, device: Device, load: Load, made: Plan) -> list[str]:
    active = f", {sizes.active / 1e9:.2f} of them used by a token" if sizes.experts else ""
    windows = f"; {sizes.sliding:.0%} of the layers keep the last {sizes.window:,}" if sizes.sliding else ""
    lines = [
        f"on {device.name}: {device.memory / 1e9:.0f} GB, {device.bandwidth / 1e9:.0f} GB/s, "
        f"{device.operations / 1e12:.3g} TFLOP/s",
        f"  weights      {made.weights / 1e9:.2f} GB ({sizes.parameters / 1e9:.2f} billion parameters{active})",
        f"  KV cache     {made.cache_token / 1024:.1f} KiB a token, {made.cache_tokens:,} tokens{windows}",
        f"  sequences    {made.sequences:,} of {load.prompt:.0f} + {load.output:.0f} tokens; {made.batch} in a step",
        f"  prompt       {made.prompt_seconds * 1e3:.1f} ms alone",
        f"  response     {made.single_rate:.0f} tokens/s alone, one every {made.token_seconds * 1e3:.1f} ms under load",
        f"  a replica    {made.output_rate:.0f} tokens/s, {made.request_rate:.2f} requests/s at best",
    ]
    if made.disk_tokens:
        lines.insert(
            3, f"  on disk      {made.disk_tokens:,} tokens; a prompt is read in {made.disk_seconds * 1e3:.1f} ms"
        )
    if load.rate:
        lines.append(f"  replicas     {made.replicas} for {load.rate:g} requests/s, used to {load.use:.0%}")
    return lines


def _device(args: argparse.Namespace) -> Device:
    """Return the device asked for; raise `ValueError` if there is no such GPU, or another device is not described."""
    given = {name: getattr(args, name) for name in ("memory", "bandwidth", "tflops")}
    if args.gpu is None:
        missing = [f"--{name}" for name, value in given.items() if value is None]
        if missing:
            raise ValueError(f"name a device with --gpu, or describe one: {', '.join(missing)} is missing")
        known = Device("this device", 0, 0, 0)
    else:
        known = device_of(args.gpu)
    return Device(
        known.name,
        known.memory if given["memory"] is None else given["memory"] * 1e9,
        known.bandwidth if given["bandwidth"] is None else given["bandwidth"] * 1e9,
        known.operations if given["tflops"] is None else given["tflops"] * 1e12,
    )


def _share(text: str) -> float:
    """Return a share above 0; an argparse type."""
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, got {text}")
    return number


def _part(text: str) -> float:
    """Return a share below 1; an argparse type."""
    number = float(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 1, got {text}")
    return number
