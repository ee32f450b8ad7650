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

from flow_core.plugins.host import load_plugins as load_plugins
from flow_core.testing.checks import check_gradient as check_gradient, check_kernel as check_kernel
from flow_core.testing.comms import CommKit as CommKit
from flow_core.testing.devices import DeviceKit as DeviceKit
from flow_core.testing.files import (
    CommandKit as CommandKit,
    DecoderKit as DecoderKit,
    FormatKit as FormatKit,
    ReaderKit as ReaderKit,
)
from flow_core.testing.gradients import GradientKit as GradientKit
from flow_core.testing.infer import InferKit as InferKit
from flow_core.testing.kernels import KernelKit as KernelKit
from flow_core.testing.kit import Gap as Gap, Kit as Kit
from flow_core.testing.oracle import (
    assert_like_one_device as assert_like_one_device,
    verify as verify,
)
from flow_core.testing.sbp_rules import SbpRuleKit as SbpRuleKit
from flow_core.testing.special import Deviation as Deviation
