"""``flow data``: the conversion of data sets, and reports on input pipelines.

In: data sets, record files, statistics of loaders. Out: record files, reports as text and SVG. Only
the plugin may import this package, when ``flow`` adds commands.
"""
