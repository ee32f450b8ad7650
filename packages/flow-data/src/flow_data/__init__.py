"""Readers, decoders, OFRecord, and augmentation."""

from flow_data.mnist import load_mnist

__version__ = "0.1.0"

__all__ = ["load_mnist"]
