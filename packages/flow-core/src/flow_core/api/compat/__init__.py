"""Names of other OneFlow releases, names that are not supported, and the creation of ops by type.

In: calls by programs for other releases.  Out: ops, or an `UnsupportedError` that names the
alternative.  Must not be imported by the other parts of the API.
"""
