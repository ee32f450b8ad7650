"""A device type whose arrays are tensors of PyTorch, on CUDA devices where there are any."""
