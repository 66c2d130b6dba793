"""Operators for GPUs in the Triton language, one file an operator; importing one imports ``triton``.

Wrappers take torch tensors, never synchronise, and choose the grid from shapes alone, so that CUDA graphs can capture
them. Results (and the sums of a split context) are new tensors of PyTorch's, unless ``out`` says where they go. What is
computed is held against float64 by ``tests/pytorch/kernels``, in Triton's interpreter where there is no GPU. Speeds:
``docs/internals/cuda.md``.
"""
