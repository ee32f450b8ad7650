"""Conformance tests of the ops."""

from flow_core.testing import Gap, KernelKit, SbpRuleKit

DECODERS = ("yolo_predict_decoder", "yolo_train_decoder")
FILES = "reads pictures, which test_pictures.py compares"


class TestKernels(KernelKit):
    plugin = "yolo"
    dtypes = ("float32", "float64")
    gaps = tuple(Gap(op, "never", FILES) for op in DECODERS)


class TestSbpRules(SbpRuleKit):
    plugin = "yolo"
    gaps = tuple(Gap(op, "never", FILES) for op in DECODERS)
