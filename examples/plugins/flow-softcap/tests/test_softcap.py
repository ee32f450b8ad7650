"""Conformance tests of the op."""

from flow_core.testing import GradientKit, KernelKit, SbpRuleKit


class TestKernels(KernelKit):
    plugin = "softcap"


class TestGradients(GradientKit):
    plugin = "softcap"


class TestSbpRules(SbpRuleKit):
    plugin = "softcap"
