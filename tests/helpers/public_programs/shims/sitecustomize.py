"""Names that newer releases of numpy removed, for programs of 2021; imported by Python at start."""

import numpy as np

for _name, _type in {"float": float, "int": int, "bool": bool, "object": object}.items():
    if _name not in vars(np):
        setattr(np, _name, _type)
