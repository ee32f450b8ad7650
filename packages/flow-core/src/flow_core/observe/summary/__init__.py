"""The one-screen report of a plan."""
