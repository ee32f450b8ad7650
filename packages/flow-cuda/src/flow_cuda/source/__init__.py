"""Hand-written CUDA C++, and the header that makes it compile as host C++.

In: kernel bodies that call these functions. Out: text for NVRTC or the host compiler.
Headers other than host.h must not depend on the host.
"""
