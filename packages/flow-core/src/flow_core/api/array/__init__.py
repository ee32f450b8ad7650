"""Arrays: shapes, selections, indices and constants.

In: blobs and shapes.  Out: ops in the job being traced; ``__all__`` lists the functions that
are also names of ``oneflow`` itself.  This package must not depend on `math` or `nn`.
"""

from flow_core.api.array import conditional, index, parts, scanning, select, shape, source
from flow_core.api.array.conditional import *  # noqa: F403 - a star join, by __all__
from flow_core.api.array.index import *  # noqa: F403
from flow_core.api.array.parts import *  # noqa: F403
from flow_core.api.array.scanning import *  # noqa: F403
from flow_core.api.array.select import *  # noqa: F403
from flow_core.api.array.shape import *  # noqa: F403
from flow_core.api.array.source import *  # noqa: F403

__all__ = [
    *shape.__all__,
    *select.__all__,
    *index.__all__,
    *parts.__all__,
    *conditional.__all__,
    *scanning.__all__,
    *source.__all__,
]
