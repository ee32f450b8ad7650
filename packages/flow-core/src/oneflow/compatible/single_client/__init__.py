"""``oneflow.compatible.single_client``: the lazy API of OneFlow 0.5.

Later releases of OneFlow keep job functions under this path, and programs written for them import
it as ``flow``.  It is `oneflow`, except for a few functions whose parameters 0.5 has in another
order.  Other modules below it, such as ``oneflow.compatible.single_client.typing``, are those of
`oneflow`.
"""

from typing import TYPE_CHECKING

from flow_core.api.calls.published import publish as _publish
from flow_core.api.compat.single_client import matmul as matmul

_publish(globals())

if TYPE_CHECKING:
    from oneflow import *  # type: ignore[assignment]
else:
    import oneflow

    _OWN = ("layers", "linalg", "nn", "quantization")
    __path__ = [*globals()["__path__"], *oneflow.__path__]

    def __getattr__(name):
        """Return an attribute of `oneflow`, including optional parts."""
        if name in _OWN:
            from importlib import import_module

            return import_module(f"{__name__}.{name}")
        return getattr(oneflow, name)

    def __dir__():
        """Return all names of `oneflow`."""
        return dir(oneflow)
