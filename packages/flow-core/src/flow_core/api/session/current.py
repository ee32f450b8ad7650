"""Queries about the job being traced."""

from __future__ import annotations

from dataclasses import dataclass

from flow_core.frontend.trace.job_build import current_job

__all__ = ["GlobalFunctionDesc", "current_global_function_desc"]


@dataclass(frozen=True, slots=True)
class GlobalFunctionDesc:
    """Description of a job function.

    Attributes:
        name: the job's name.
        kind: "train" or "predict".
    """

    name: str
    kind: str

    def IsTrainable(self) -> bool:
        """Return whether the job is of type "train".

        >>> GlobalFunctionDesc("job", "predict").IsTrainable()
        False
        """
        return self.kind == "train"


def current_global_function_desc() -> GlobalFunctionDesc:
    """Return the description of the job being traced; raise an error outside job functions.

    Returns: The description.

    >>> _ = run(lambda x: print(flow.current_global_function_desc() is not None) or x, [1, 2])
    True
    """
    job = current_job("current_global_function_desc")
    return GlobalFunctionDesc(job.name, job.kind)
