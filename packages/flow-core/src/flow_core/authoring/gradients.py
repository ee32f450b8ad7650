"""The API for gradient rules, and for other code that emits ops with inferred types."""

from flow_core.ops.build import Emitter, GradContext, Maker, Sym

__all__ = ["Emitter", "GradContext", "Maker", "Sym"]
