"""Plugin of the built-in graph passes."""

from __future__ import annotations

from flow_core.plugins.specs import PassSpec

FLOW_PLUGIN_API = "1.0"


def _requested(name: str, load: str, *after: str) -> PassSpec:
    """Return the spec of a pass that runs only in jobs whose settings request it."""
    return PassSpec(name, "logical", f"flow_core.passes.{load}", after=after, default=False)


PASSES: tuple[PassSpec, ...] = (
    PassSpec(
        "inline_bodies",
        "logical",
        "flow_core.passes.control.inline_bodies:InlineBodies",
        before=("unroll_recurrent",),
    ),
    PassSpec(
        "unroll_recurrent",
        "logical",
        "flow_core.passes.plain_ops:UnrollRecurrent",
        before=("mixed_precision",),
    ),
    _requested("mixed_precision", "mixed_precision:MixedPrecision"),
    _requested("checkpointing", "checkpointing:Checkpointing", "mixed_precision"),
    _requested("indexed_slices", "indexed_slices:IndexedSlices", "checkpointing"),
    _requested(
        "gradient_accumulation",
        "gradient_accumulation:GradientAccumulation",
        "checkpointing",
        "indexed_slices",
    ),
    _requested(
        "optimizer_placement", "optimizer_placement:OptimizerPlacement", "gradient_accumulation"
    ),
    _requested("shared_placement", "optimizer_placement:SharedPlacement", "optimizer_placement"),
    _requested("split_norms", "split_norms:SplitNorms", "shared_placement"),
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
    PassSpec(
        "simplify_loops",
        "lower",
        "flow_core.passes.control.simplify_loops:SimplifyLoops",
        before=("constant_folding",),
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
    PassSpec("plain_means", "legalize", "flow_core.passes.plain_ops:PlainMeans"),
    PassSpec(
        "host_fallback",
        "legalize",
        "flow_core.compiler.host_fallback:HostFallback",
        after=("plain_means",),
        default=False,
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
    """Return the passes that the compiler runs for every job, or at the request of settings."""
    return PASSES
