"""The command line of ``tools/gpu_check.sh``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from tools.gpu_check import machine
from tools.gpu_check.runner import Runner
from tools.gpu_check.steps import DRY_RUN_FACTOR, SECONDS, build_step, steps_of


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="tools/gpu_check.sh", description="Test and measure on the GPU of this machine, without network."
    )
    parser.add_argument(
        "what", choices=SECONDS, help="exactness of kernels and models; speeds; two builds in turn (OLD and NEW)"
    )
    parser.add_argument("builds", nargs="*", type=Path, metavar="BUILD", help="compare: two files _cuda_device*.so")
    parser.add_argument("--folder", type=Path, default=Path("bench-results"), help="of the results (bench-results)")
    parser.add_argument("--seconds", type=float, help=f"for everything (default: {SECONDS})")
    parser.add_argument("--only", nargs="+", metavar="STEP", help="nothing else; a beginning of the name is enough")
    parser.add_argument("--list", action="store_true", help="print the steps and their seconds, and do nothing")
    parser.add_argument("--prebuilt", action="store_true", help="take compiled modules that came along")
    parser.add_argument("--dry-run", action="store_true", help="with CUDA's emulation, tiny shapes and no GPU")
    given = parser.parse_args()
    if len(given.builds) != (2 if given.what == "compare" else 0):
        parser.error(f"{given.what} takes {'two builds' if given.what == 'compare' else 'no builds'}")
    if gone := [str(build) for build in given.builds if not build.is_file()]:
        parser.error(f"no such file: {', '.join(gone)}")
    return given


def main() -> int:
    """Run the command line; return the exit status: 1 where something went wrong, 2 where nothing could begin."""
    given = arguments()
    steps = steps_of(given.what, [build.resolve() for build in given.builds], is_dry_run=given.dry_run)
    if given.list:
        print("\n".join(f"{step.name:45} {step.seconds:4.0f}" for step in steps))
        return 0
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    is_built = given.what == "compare" or given.prebuilt or given.dry_run
    with tempfile.TemporaryDirectory() as programs:
        if given.dry_run:
            machine.write_stand_ins(Path(programs))
        os.environ |= machine.environment(folder, programs, is_dry_run=given.dry_run)
        if missing := machine.missing(builds=not is_built):
            print("\n".join(f"missing: {name}" for name in missing))
            return 2
        try:
            gpu = machine.read_gpu()
            described = gpu.described() | {"is_dry_run": given.dry_run}
        except ValueError as error:
            print(error)
            return 2
        if given.only:
            steps = [step for step in steps if step.name.startswith(tuple(given.only))]
        if not is_built:
            steps = [build_step(gpu.architecture), *steps]
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends its step too, and leaves a report
        seconds = given.seconds or SECONDS[given.what] * (DRY_RUN_FACTOR if given.dry_run else 1)
        runner = Runner(folder, described, seconds)
        is_well = False
        try:
            is_well = runner.run(steps)
        finally:
            print("\n" + runner.report(), flush=True)
        return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
