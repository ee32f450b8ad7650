"""Kernels of flow-cuda under ThreadSanitizer, AddressSanitizer and UndefinedBehaviorSanitizer."""
