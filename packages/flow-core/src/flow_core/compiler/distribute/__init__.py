"""Distribution: from the logical graph to the physical graph, in which each op runs on one device.

In: a `Problem`, which is a logical graph with the specs of its ops, and a selector of signatures.
Out: a `Physical`, with the physical graph, the layouts, and the ledger of transfers.
"""
