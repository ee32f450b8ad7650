"""A device that runs kernels on the host and checks the order of streams."""
