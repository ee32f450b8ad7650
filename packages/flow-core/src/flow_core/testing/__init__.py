"""Conformance kits for plugin authors: subclass to test.  Needs ``flow-core[testing]``.

A kit is a class with tests that says nothing about whose plugin it tests.  A test module
subclasses it, sets a few attributes, and pytest collects the subclass::

    from flow_core.testing import Gap, KernelKit


    class TestKernels(KernelKit):
        plugin = "cubes"
        gaps = (Gap("cube", "notyet", "no half types", dtypes=("float16", "bfloat16")),)
"""

from flow_core.plugins.host import load_plugins
from flow_core.testing.checks import check_gradient, check_kernel
from flow_core.testing.comms import CommKit
from flow_core.testing.devices import DeviceKit
from flow_core.testing.gradients import GradientKit
from flow_core.testing.kernels import KernelKit
from flow_core.testing.kit import Gap, Kit
from flow_core.testing.oracle import assert_like_one_device, verify
from flow_core.testing.sbp_rules import SbpRuleKit
from flow_core.testing.special import Deviation

__all__ = [
    "CommKit",
    "Deviation",
    "DeviceKit",
    "Gap",
    "GradientKit",
    "KernelKit",
    "Kit",
    "SbpRuleKit",
    "assert_like_one_device",
    "check_gradient",
    "check_kernel",
    "load_plugins",
    "verify",
]
