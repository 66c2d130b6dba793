"""Builds for the GPU of this machine, tests on it and measures it, in minutes: ``tools/gpu_check.sh``.

``stages.py`` lists what is done in which order; ``runner.py`` does it, each stage in its own process;
``journal.py`` keeps what was found, line by line; ``table.py`` holds it against the targets. What a stage does where it
is no command is a module of ``work/``. ``dry_run.py`` stands in for the GPU where there is none.
"""
