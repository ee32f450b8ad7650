"""The API for gradient rules, and for other code that emits ops with inferred types."""

from flow_core.ops.build import Emitter as Emitter
from flow_core.ops.build import GradContext as GradContext
from flow_core.ops.build import Maker as Maker
from flow_core.ops.build import Sym as Sym
