"""Checks of a GPU machine in minutes: ``tools/gpu_check.sh tests | measure | compare``.

``steps.py`` lists the steps, ``runner.py`` gives each its own process and time, ``table.py`` compares with targets.
Steps that are no commands are modules of ``work/``. ``--dry-run`` takes CUDA's emulation and tiny shapes.
"""
