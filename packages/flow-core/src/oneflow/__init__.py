"""OneFlow's job functions: ``import oneflow as flow``.

In: the public names of `flow_core.api`, each listed once in the ``__all__`` of its module;
``oneflow.typing`` from the optional package flow-typing; ``oneflow.data``, ``oneflow.image``,
``oneflow.detection`` and the functions on images, objects and ragged values from the optional
package flow-data.  Out: OneFlow's namespace.  This package must not depend on any other package or
define operations.

This folder has more modules than other folders, since each module is a public namespace of OneFlow.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from flow_core import __version__ as __version__

if TYPE_CHECKING:
    from flow_data.toplevel import *
    from oneflow import advanced as advanced
    from oneflow import checkpoint as checkpoint
    from oneflow import config as config
    from oneflow import data as data
    from oneflow import deprecated as deprecated
    from oneflow import detection as detection
    from oneflow import distribute as distribute
    from oneflow import distributed as distributed
    from oneflow import env as env
    from oneflow import experimental as experimental
    from oneflow import image as image
    from oneflow import keras as keras
    from oneflow import layers as layers
    from oneflow import linalg as linalg
    from oneflow import losses as losses
    from oneflow import math as math
    from oneflow import nn as nn
    from oneflow import onnx as onnx
    from oneflow import optimizer as optimizer
    from oneflow import profiler as profiler
    from oneflow import quantization as quantization
    from oneflow import random as random
    from oneflow import regularizers as regularizers
    from oneflow import saved_model as saved_model
    from oneflow import scope as scope
    from oneflow import serving as serving
    from oneflow import summary as summary
    from oneflow import sysconfig as sysconfig
    from oneflow import system as system
    from oneflow import tensorrt as tensorrt
    from oneflow import train as train
    from oneflow import typing as typing
    from oneflow import unittest as unittest
    from oneflow import util as util
    from oneflow import weights as weights
    from oneflow._names import *
else:
    from importlib import import_module
    from importlib.util import find_spec
    from pkgutil import iter_modules

    _PIECES = {
        "data": "flow_data",
        "detection": "flow_data",
        "image": "flow_data",
        "typing": "flow_typing",
        "weights": "flow_core",
    }
    _IMPORT_PATHS = ("compatible", "core", "python")  # of other versions of OneFlow
    _FROM_DATA = (
        "gen_tensor_buffer", "image_batch_align", "image_decode", "image_flip", "image_normalize",
        "image_random_crop", "image_resize", "image_target_resize", "object_bbox_flip",
        "object_bbox_scale", "object_segmentation_polygon_flip",
        "object_segmentation_polygon_scale", "object_segmentation_polygon_to_mask",
        "tensor_buffer_to_list_of_tensors", "tensor_buffer_to_tensor",
        "tensor_buffer_to_tensor_list", "tensor_list_split", "tensor_list_to_tensor_buffer",
        "tensor_to_tensor_buffer",
    )  # fmt: skip
    _PROVIDERS = {**_PIECES, **dict.fromkeys(_FROM_DATA, "flow_data")}

    def __getattr__(name):
        """Import a module of the API, or all of its other names, on first use."""
        if name in _PROVIDERS:
            return _optional(name)
        if name == "__all__":
            return sorted({*_modules(), *_own_names()})
        if not name.startswith("_"):
            if name in _modules():
                return import_module(f"oneflow.{name}")
            if name in _own_names():
                value = globals()[name] = _own_names()[name]
                return value
        if name == "_oneflow_internal":
            return import_module("oneflow._oneflow_internal")
        raise _unknown(name, sys._getframe(1))

    def _modules():
        """Return the names of the modules of the API that flow-core provides."""
        names = {module.name for module in iter_modules(__spec__.submodule_search_locations)}
        hidden = {*_PIECES, *_IMPORT_PATHS}
        return [name for name in names - hidden if not name.startswith("_")]

    def _own_names():
        """Return the values of the names that are not modules."""
        values = vars(import_module("oneflow._names"))
        return {name: value for name, value in values.items() if not name.startswith("_")}

    def _optional(name):
        """Import an optional part of the API."""
        if find_spec(_PROVIDERS[name]) is None:
            from oneflow._pieces import missing

            raise AttributeError(missing(name, _PROVIDERS[name]))
        if name in _PIECES:
            return import_module(f"oneflow.{name}")
        return getattr(import_module("oneflow._from_data"), name)

    def _unknown(name, caller):
        """Return the error about a name that does not exist."""
        if name.startswith("_"):
            return AttributeError(f"module 'oneflow' has no attribute {name!r}", name=name)
        from flow_core.api.compat.eager_names import unknown

        return unknown("oneflow", name, __dir__(), caller)

    class _Elsewhere:
        """Explain the import of modules that PyTorch and Keras have, such as ``torch.optim``."""

        @staticmethod
        def find_spec(name, path=None, target=None):
            module, _, last = name.rpartition(".")
            if name.startswith("oneflow."):
                from flow_core.api.compat.eager_names import elsewhere

                if text := elsewhere(module, last):
                    raise ModuleNotFoundError(text, name=name)

    def __dir__():
        """Return all names, including those of the optional parts that are installed."""
        optional = (name for name, package in _PROVIDERS.items() if find_spec(package))
        own = (name for name in globals() if name.startswith("__"))
        return sorted({*own, "load_ipython_extension", *__getattr__("__all__"), *optional})


def load_ipython_extension(shell: object) -> None:
    """Show errors of flow in few lines; ``%load_ext oneflow`` calls this function."""
    from flow_core.observe.notebook import install

    install(shell)


if not TYPE_CHECKING:
    sys.meta_path.append(_Elsewhere)

if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    load_ipython_extension(_shell)
