"""Other engines, measured on the same machine, model and requests as ours (`make peers` installs them)."""
