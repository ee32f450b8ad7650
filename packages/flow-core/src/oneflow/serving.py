"""``oneflow.serving``; see `flow_core.api.serving.inference_session`."""

from flow_core.api.calls.published import publish as _publish
from flow_core.api.serving.inference_session import (
    InferenceSession,
    ModelVersionPolicy,
    SessionOption,
)

__all__ = ["InferenceSession", "ModelVersionPolicy", "SessionOption"]

_publish(globals())
