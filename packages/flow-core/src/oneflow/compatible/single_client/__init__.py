"""``oneflow.compatible.single_client``: `oneflow` itself.

Later releases of OneFlow keep job functions under this path, and programs written for them import
it as ``flow``.  Modules below it, such as ``oneflow.compatible.single_client.typing``, are also
those of `oneflow`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oneflow import *
else:
    import oneflow

    __path__ = oneflow.__path__

    def __getattr__(name):
        """Return an attribute of `oneflow`, including optional parts."""
        return getattr(oneflow, name)

    def __dir__():
        """Return all names of `oneflow`."""
        return dir(oneflow)
