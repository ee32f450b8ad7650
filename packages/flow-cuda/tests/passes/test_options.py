"""Settings of cuDNN are options of the passes that use it."""

from __future__ import annotations

from cuda_cases import simulated_registry

from flow_core.frontend.config.function_config import CUDNN, FunctionConfig, pass_settings
from flow_core.passes.options import configured, options_of
from flow_core.plugins.specs import load


def test_options_have_the_defaults_of_their_settings() -> None:
    settings = {**pass_settings(FunctionConfig()), "check_finite": "off"}
    seen = set()
    for spec in simulated_registry().passes:
        item = load(spec.load)() if spec.default else None
        seen |= {row.setting for row in options_of(item)}
        assert configured(item, settings, "comparing") == item, spec.name
    assert {s.name for s in CUDNN if s.name in settings} <= seen


def test_settings_of_a_job_reach_the_passes() -> None:
    config = FunctionConfig()
    config.enable_cudnn(False)
    config.cudnn_buf_limit_mbyte(7)
    config.enable_true_half_config_when_conv()
    config.cudnn_conv_force_fwd_algo(6)
    settings = {**pass_settings(config), "check_finite": "off"}
    passes = {spec.name: spec for spec in simulated_registry().passes}
    found = configured(load(passes["cudnn_convolutions"].load)(), settings, "")
    assert (found.enabled, found.workspace_mb, found.pseudo_half, found.fwd) == (False, 7, False, 6)
    layout = configured(load(passes["cuda_layout"].load)(), settings, "")
    assert not layout.enabled
