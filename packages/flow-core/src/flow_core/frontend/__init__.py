"""What a user's program talks to: job functions, scopes, blobs, variables, the session."""
