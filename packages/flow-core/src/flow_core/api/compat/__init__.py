"""Names of other OneFlow releases, unsupported names that raise errors, and ops by type.

In: calls of programs for other releases.  Out: ops, or an `UnsupportedError` with the alternative.
Must not be imported by the other parts of the API.
"""
