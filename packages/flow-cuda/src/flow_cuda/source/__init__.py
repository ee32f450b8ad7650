"""Hand-written CUDA C++, and the header that makes this code compile as host C++.

In: kernel bodies that call these functions. Out: text for NVRTC or the host compiler.
No header except host.h may depend on the host.
"""
