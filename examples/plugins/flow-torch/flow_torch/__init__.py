"""A device type whose arrays are PyTorch tensors, on CUDA devices if there are any."""
