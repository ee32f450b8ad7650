"""Shared parts of backends' passes: kernel lookups during rewriting, and data layouts.

In: graphs, op specs, and the kernels and layout table of a backend.  Out: rewritten graphs. This
package must not depend on a backend, other passes, devices or the frontend.
"""
