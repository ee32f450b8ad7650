"""The logical graph: frozen ops on values, its verifier and its text form.

In: ops that the frontend or a pass adds. Out: graphs that passes and the compiler read. This
package must not depend on op families, passes, devices or plugins.
"""
