"""What passes rewrite graphs with: the rewriter, decomposition, data layouts, derived values.

In: graphs, op specs, and the kernels and layout table of a backend.  Out: rewritten graphs.  This
package must not depend on a backend, other passes, devices or the frontend.  Authors of plugins
import it from `flow_core.authoring.pass_api` and `flow_core.authoring.layouts`.
"""
