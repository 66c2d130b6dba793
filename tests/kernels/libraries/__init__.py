"""What surrounds libraries' kernels on CUDA: each is played by the emulation."""
