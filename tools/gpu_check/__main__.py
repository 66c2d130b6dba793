"""The command line of ``tools/gpu_check.sh``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tools.gpu_check import machine
from tools.gpu_check.dry_run import stand_ins
from tools.gpu_check.journal import Journal
from tools.gpu_check.runner import Runner, stop_on_sigterm
from tools.gpu_check.stages import CALLS, DRY_RUN_FACTOR, all_stages
from tools.gpu_check.work.context import JOURNAL

_SECONDS = 540.0


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="tools/gpu_check.sh",
        description="Build for the GPU of this machine, test on it and measure it. Called again it continues: what is "
        "done and unchanged is not repeated.",
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("bench-results"), help="results (bench-results)")
    parser.add_argument("--seconds", type=float, help="for everything (default: 540; a dry run: 3240)")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="nothing else; a beginning of the name is enough")
    parser.add_argument("--call", choices=CALLS, help="what this call is for; none: all, as far as the time goes")
    parser.add_argument("--again", nargs="*", metavar="STAGE", default=None, help="repeat these though done; none: all")
    parser.add_argument(
        "--earlier", nargs="+", type=Path, default=[], metavar="FILE", help="gpu_check.jsonl of earlier calls"
    )
    parser.add_argument("--list", action="store_true", help="print the stages and their seconds, and do nothing")
    parser.add_argument("--prebuilt", action="store_true", help="take compiled modules that came along, if they load")
    parser.add_argument("--dry-run", action="store_true", help="with CUDA's emulation, tiny shapes and no GPU")
    return parser.parse_args()


def main() -> int:
    """Run the command line; return the exit status: 1 where something went wrong, 2 where nothing could begin."""
    given = arguments()
    folder: Path = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if given.list:
        for stage in all_stages("", is_dry_run=given.dry_run, is_prebuilt=given.prebuilt):
            print(f"{stage.name:45} {stage.seconds:4.0f} {stage.most:4.0f}  {stage.call}")
        return 0
    environment = machine.environment(folder, is_dry_run=given.dry_run)
    with tempfile.TemporaryDirectory() as programs:
        if given.dry_run:
            stand_ins(Path(programs))
            environment["PATH"] = os.pathsep.join([programs, environment["PATH"]])
        os.environ |= environment
        if missing := machine.missing():
            print("\n".join(f"missing: {name}" for name in missing))
            return 2
        try:
            gpu = machine.read_gpu()
            described = gpu.described() | {"flashinfer": machine.has_flashinfer(), "is_dry_run": given.dry_run}
        except ValueError as error:
            print(error)
            return 2
        if not (machine.has_flashinfer() or given.dry_run or given.prebuilt):
            print("without FlashInfer's kernels: its headers are not here (TURBOMIND_FLASHINFER_DIR names a folder)")
        stages = all_stages(gpu.architecture, is_dry_run=given.dry_run, is_prebuilt=given.prebuilt)
        if given.call:
            stages = [stage for stage in stages if stage.call in ("", given.call)]
        if given.only:
            stages = [stage for stage in stages if stage.name.startswith(tuple(given.only))]
        again = given.again if given.again is None or given.again else [stage.name for stage in stages]
        stop_on_sigterm()
        journal = Journal(folder / JOURNAL, given.earlier)
        seconds = given.seconds or _SECONDS * (DRY_RUN_FACTOR if given.dry_run else 1)
        runner = Runner(folder, journal, environment, described, seconds, again or ())
        is_well = False
        try:
            is_well = runner.run(stages)
        finally:
            print("\n" + runner.report(), flush=True)
        return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
