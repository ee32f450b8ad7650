"""Plugin of the built-in graph passes."""

from __future__ import annotations

from flow_core.plugins.specs import PassSpec

FLOW_PLUGIN_API = "1.0"

PASSES: tuple[PassSpec, ...] = (
    PassSpec(
        "batch_statistics",
        "lower",
        "flow_core.passes.batch_statistics:BatchStatistics",
        before=("common_subexpressions",),
    ),
    PassSpec(
        "split_classes",
        "lower",
        "flow_core.passes.split_classes:SplitClasses",
        before=("common_subexpressions",),
    ),
    PassSpec("constant_folding", "lower", "flow_core.passes.constant_folding:ConstantFolding"),
    PassSpec(
        "common_subexpressions",
        "lower",
        "flow_core.passes.common_subexpressions:CommonSubexpressions",
        after=("constant_folding",),
    ),
    PassSpec(
        "dead_code",
        "lower",
        "flow_core.passes.dead_code:DeadCode",
        after=("common_subexpressions",),
    ),
    PassSpec(
        "fold_norms",
        "physical",
        "flow_core.passes.fold_norms:FoldNorms",
        before=("fuse_elementwise",),
    ),
    PassSpec(
        "fuse_elementwise",
        "physical",
        "flow_core.passes.fuse_elementwise:FuseElementwise",
    ),
    PassSpec(
        "bucket_all_reduces",
        "physical",
        "flow_core.passes.bucket_all_reduces:BucketAllReduces",
        after=("fuse_elementwise",),
    ),
)


def flow_register_passes() -> tuple[PassSpec, ...]:
    """Return the passes that the compiler runs for every job."""
    return PASSES
