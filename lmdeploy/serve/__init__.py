"""What talks to a running Triton, and what starts one."""
