"""Names of other OneFlow releases, names that are not supported, and the creation of ops by type.

In: calls by programs for other releases.  Out: ops, or an `UnsupportedError` that names the
alternative.  The other parts of the API must not import this package.
"""
