"""Models of Triton's Python backend. Each is thin: read tensors, call ``lmdeploy``, write tensors."""
