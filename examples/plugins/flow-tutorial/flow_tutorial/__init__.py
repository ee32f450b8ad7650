"""The ops that the documentation of OneFlow writes in C++."""
