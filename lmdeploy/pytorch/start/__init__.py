"""What a worker on a GPU does before its first step: it chooses kernels that pass self-checks, and warms up."""
