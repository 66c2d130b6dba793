"""The documented place of `run_local`."""
