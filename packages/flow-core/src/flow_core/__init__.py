"""The core of flow: graph IR, SBP algebra, compiler, runtime and the numpy kernels.

In: job functions and plugins.  Out: compiled jobs; the package `oneflow` re-exports the public API.
This package must not depend on other packages of the project.
"""

__version__ = "0.1.0"
