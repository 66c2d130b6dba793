"""What the kernels of a CUDA build take of a multiprocessor, read from its objects without a GPU."""
