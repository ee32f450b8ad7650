"""Graph passes, one per file; each gives valid IR for valid IR."""
