"""Steps that are no commands: each module's ``main(context)``, run by ``python -m tools.gpu_check.work NAME``."""
