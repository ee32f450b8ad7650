"""The program-facing layer: job functions, scopes, blobs, variables, the session."""
