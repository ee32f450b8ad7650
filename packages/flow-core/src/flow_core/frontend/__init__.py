"""The layer that programs use: job functions, scopes, blobs, variables and the session."""
