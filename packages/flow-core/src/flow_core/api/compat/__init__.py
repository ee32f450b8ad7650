"""Names of other OneFlow releases, names that refuse with a reason, and ops by type."""
