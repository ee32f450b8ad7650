"""Plugin of the built-in graph passes."""

from __future__ import annotations

from flow_core.plugins.specs import PassSpec

FLOW_PLUGIN_API = "1.0"


def _requested(name: str, load: str, *after: str) -> PassSpec:
    """Return the spec of a pass that runs only in jobs whose settings request it."""
    return PassSpec(name, "logical", f"flow_core.passes.{load}", after=after, default=False)


def _before(other: str, stage: str, name: str, load: str) -> PassSpec:
    """Return the spec of a pass that runs before another one."""
    return PassSpec(name, stage, f"flow_core.passes.{load}", before=(other,))


def _after(other: str, stage: str, name: str, load: str) -> PassSpec:
    """Return the spec of a pass that runs after another one."""
    return PassSpec(name, stage, f"flow_core.passes.{load}", after=(other,))


_SUBEXPRESSIONS = "common_subexpressions"

PASSES: tuple[PassSpec, ...] = (
    _before("unroll_recurrent", "logical", "inline_bodies", "control.inline_bodies:InlineBodies"),
    _before("mixed_precision", "logical", "unroll_recurrent", "plain_ops:UnrollRecurrent"),
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
    _before(_SUBEXPRESSIONS, "lower", "batch_statistics", "batch_statistics:BatchStatistics"),
    _before(_SUBEXPRESSIONS, "lower", "split_classes", "split_classes:SplitClasses"),
    _before("constant_folding", "lower", "simplify_loops", "control.simplify_loops:SimplifyLoops"),
    PassSpec("constant_folding", "lower", "flow_core.passes.constant_folding:ConstantFolding"),
    _after(
        "constant_folding", "lower", _SUBEXPRESSIONS, "common_subexpressions:CommonSubexpressions"
    ),
    _after(_SUBEXPRESSIONS, "lower", "dead_code", "dead_code:DeadCode"),
    PassSpec("plain_means", "legalize", "flow_core.passes.plain_ops:PlainMeans"),
    PassSpec(
        "host_fallback",
        "legalize",
        "flow_core.compiler.host_fallback:HostFallback",
        after=("plain_means",),
        default=False,
    ),
    _before("fuse_elementwise", "physical", "fold_norms", "fold_norms:FoldNorms"),
    PassSpec("fuse_elementwise", "physical", "flow_core.passes.fuse_elementwise:FuseElementwise"),
    _after(
        "fuse_elementwise", "physical", "bucket_all_reduces", "bucket_all_reduces:BucketAllReduces"
    ),
)


def flow_register_passes() -> tuple[PassSpec, ...]:
    """Return the passes that the compiler runs for every job, or at the request of settings."""
    return PASSES
