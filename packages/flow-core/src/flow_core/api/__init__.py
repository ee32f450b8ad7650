"""The public names, a module per part of OneFlow's API; the facade ``oneflow`` re-exports them."""
