"""Data sets by name, and augmentation of batches: ``flow.data.datasets``, ``flow.data.augment``.

In: files that users have or that packages ship.  Out: arrays, for `flow_data.batches`.  Nothing is
downloaded unless ``download=True`` asks for it.
"""

from flow_data.datasets.files import DataSet, Examples
from flow_data.datasets.folders import ImageFolder, image_folder
from flow_data.datasets.images import cifar10, digits, fashion_mnist, mnist
from flow_data.datasets.tables import Table, Text, csv, text

__all__ = [
    "DataSet", "Examples", "ImageFolder", "Table", "Text", "cifar10", "csv", "digits",
    "fashion_mnist", "image_folder", "mnist", "text",
]  # fmt: skip
