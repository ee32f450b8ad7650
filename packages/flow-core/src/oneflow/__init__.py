"""OneFlow's job functions: ``import oneflow as flow``.

The names of the core come from `flow_core.api`; the pieces ``oneflow.typing`` and
``oneflow.data`` come from the optional packages flow-typing and flow-data.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from flow_core import __version__
from flow_core.api.array import *
from flow_core.api.dtypes import *
from flow_core.api.initializers import *
from flow_core.api.job import *
from flow_core.api.linalg import matmul
from flow_core.api.math import *
from flow_core.api.scope import device_prior_placement, fixed_placement
from oneflow import (
    advanced,
    checkpoint,
    config,
    deprecated,
    distribute,
    env,
    experimental,
    layers,
    linalg,
    losses,
    math,
    nn,
    optimizer,
    random,
    regularizers,
    scope,
    train,
    unittest,
    util,
)

if TYPE_CHECKING:
    from oneflow import data as data
    from oneflow import typing as typing
else:
    _PIECES = {"data": "flow_data", "typing": "flow_typing"}

    def __getattr__(name):
        """Imports the optional pieces when they are first used."""
        if name in _PIECES and find_spec(_PIECES[name]) is not None:
            from importlib import import_module

            return import_module(f"oneflow.{name}")
        if name in _PIECES:
            from oneflow._pieces import missing

            raise AttributeError(missing(name, _PIECES[name]))
        from flow_core.errors import nearest

        hint = nearest(name, dir())
        raise AttributeError(f"module 'oneflow' has no attribute {name!r}; {hint}".rstrip("; "))

    def __dir__():
        """All names, the installed optional pieces among them."""
        return sorted({*globals(), *(p for p, m in _PIECES.items() if find_spec(m))})
