"""Seeing what a job is compiled to, and whether it computes what one device computes.

`document` puts a compiled job into plain data, which `text`, `diff` and `page` show; `oracle`
runs a plan beside the plan of one device.
"""
