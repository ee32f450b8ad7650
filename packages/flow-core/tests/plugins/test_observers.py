"""Observers see every plan and every step."""

from dataclasses import replace

import numpy as np

from flow_core.annotations import placeholder
from flow_core.frontend.job.function import JobFunction
from flow_core.frontend.session.session import Session, default_session
from flow_core.frontend.trace.emit import emit
from flow_core.plugins.registry import HookCall

TWO = placeholder("numpy", (2,))


def test_plugin_observes_the_plan_and_each_step() -> None:
    plans: list[str] = []
    steps: list[tuple[int, str]] = []
    registry = default_session().registry
    origin = registry.plugins[0].origin
    observers = {
        "flow_plan_ready": (HookCall(origin, lambda plan: plans.append(plan.job)),),
        "flow_step_finished": (
            HookCall(origin, lambda step, stats: steps.append((step, stats["job"]))),
        ),
    }
    session = Session(replace(registry, calls={**registry.calls, **observers}))

    def seen(x=TWO):
        return emit("negative", x)

    job = JobFunction(seen, "predict", session=session)
    for _ in range(3):
        job(np.zeros(2, np.float32)).get()
    session.close()
    assert plans == ["seen"]
    assert steps == [(0, "seen"), (1, "seen"), (2, "seen")]
