"""Readers, decoders, OFRecord, and augmentation."""

__version__ = "0.1.0"
