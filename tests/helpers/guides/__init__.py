"""The table "Where to change what" of docs/architecture.md, followed step by step in a clone."""
