"""The cost model of plans: links, collectives, devices and kernels.

One `CostModel` serves the selector of SBP signatures, the planner of boxing, the order of ops on
streams, the ledger and the simulator.  It is the default model, or one that a topology file
describes.
"""
