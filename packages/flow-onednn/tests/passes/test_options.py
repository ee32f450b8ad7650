"""The job's settings reach the options of this package's passes."""

from __future__ import annotations

from flow_core.frontend.config.function_config import FunctionConfig, pass_settings
from flow_core.passes.options import configured
from flow_onednn.passes.fuse import Fusions


def test_the_default_of_the_math_mode_is_that_of_the_setting() -> None:
    settings, fusions = pass_settings(FunctionConfig()), Fusions({})
    assert configured(fusions, settings, "comparing") == fusions


def test_the_math_mode_of_a_job_reaches_the_fusions() -> None:
    config = FunctionConfig()
    config.math_mode("bfloat16")
    assert configured(Fusions({}), pass_settings(config), "comparing").math_mode == "bfloat16"
