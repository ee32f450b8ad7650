"""A plugin whose library is missing."""

raise ImportError("libcubes.so.3: cannot open shared object file")
