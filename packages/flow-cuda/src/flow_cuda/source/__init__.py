"""Hand-written CUDA C++.

In: kernel bodies that call these functions. Out: text for NVRTC or, in tests, the host compiler.
No header may depend on the host.
"""
