"""Conformance kits for plugin authors; they require ``flow-core[testing]``.

In: the records of a plugin.  Out: pytest tests of the contracts of these records.
The core, and plugins outside of their tests, must not import this package.

A kit is a class of tests that is independent of the plugin under test.  A test module subclasses
it and sets a few attributes; pytest collects the subclass::

    from flow_core.testing import Gap, KernelKit


    class TestKernels(KernelKit):
        plugin = "cubes"
        gaps = (Gap("cube", "notyet", "no 16-bit types", dtypes=("float16", "bfloat16")),)
"""

from flow_core.plugins.host import load_plugins
from flow_core.testing.checks import check_gradient, check_kernel
from flow_core.testing.comms import CommKit
from flow_core.testing.devices import DeviceKit
from flow_core.testing.files import CommandKit, DecoderKit, FormatKit, ReaderKit
from flow_core.testing.gradients import GradientKit
from flow_core.testing.infer import InferKit
from flow_core.testing.kernels import KernelKit
from flow_core.testing.kit import Gap, Kit
from flow_core.testing.oracle import assert_like_one_device, verify
from flow_core.testing.sbp_rules import SbpRuleKit
from flow_core.testing.special import Deviation

__all__ = [
    "CommKit",
    "CommandKit",
    "DecoderKit",
    "Deviation",
    "DeviceKit",
    "FormatKit",
    "Gap",
    "GradientKit",
    "InferKit",
    "KernelKit",
    "Kit",
    "ReaderKit",
    "SbpRuleKit",
    "assert_like_one_device",
    "check_gradient",
    "check_kernel",
    "load_plugins",
    "verify",
]
