"""Loops that oneDNN has no primitive for, in C, compiled on the spot by the system's compiler."""
