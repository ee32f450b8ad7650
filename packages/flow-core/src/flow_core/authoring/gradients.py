"""The API for gradient rules, and for other code that emits ops with inferred types."""

from flow_core.ops.build import (
    Emitter as Emitter,
    GradContext as GradContext,
    Maker as Maker,
    Sym as Sym,
)
