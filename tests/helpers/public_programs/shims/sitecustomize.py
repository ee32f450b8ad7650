"""Names that newer releases of numpy removed, for programs of 2021; imported by Python at start."""

import numpy as np

_REMOVED = {
    "float": float, "int": int, "bool": bool, "object": object, "trapz": vars(np).get("trapezoid"),
}  # fmt: skip
for _name, _found in _REMOVED.items():
    if _name not in vars(np):
        setattr(np, _name, _found)
