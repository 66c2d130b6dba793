"""Reports to open elsewhere: every counter of the kernels of a step by ``ncu``, and a timeline by ``nsys``.

The files lie next to the other results: SHAPE-STEP.ncu-rep and SHAPE-STEP.nsys-rep.
"""

from __future__ import annotations

import shutil

from tools.gpu_check.work.context import Context, LeftOut
from tools.gpu_check.work.profile import NCU, NSYS, STEPS, command_of, output_of

_MOST_KERNELS = "60"  # each is run some 40 times
_WAYS = {
    "ncu": (*NCU, "--force-overwrite", "--set", "full", "--launch-count", _MOST_KERNELS, "--export"),
    "nsys": (*NSYS, "--trace", "cuda,nvtx", "--cuda-graph-trace", "node", "--output"),
}


def main(context: Context, shape: str) -> None:
    """Write the reports of a shape's steps.

    Raises
    ------
    LeftOut
        There is no profiler.
    RuntimeError
        None of those that are there made any.
    """
    programs = [program for program in _WAYS if shutil.which(program)]
    if not programs:
        raise LeftOut("there is neither ncu nor nsys")
    written: list[str] = []
    problem: RuntimeError | None = None
    for step in STEPS:
        for program in programs:
            name = f"{shape}-{step}"
            try:
                output_of([*_WAYS[program], str(context.folder / name), *command_of(step, shape)])
                written.append(f"{name}.{program}-rep")
            except RuntimeError as error:
                print(error, flush=True)
                problem = error
    if problem is not None and not written:
        raise problem
    context.note(f"reports of {shape}", ", ".join(written))
