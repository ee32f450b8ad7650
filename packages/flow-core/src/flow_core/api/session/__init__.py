"""Jobs, scopes, settings and placement of the session."""
