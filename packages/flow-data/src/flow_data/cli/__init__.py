"""``flow data``: the conversion of data sets, and reports on input pipelines.

In: data sets, record files, statistics of loaders.  Out: record files, reports as text and SVG.
Must not be imported by the rest of the package but by the plugin, when ``flow`` adds commands.
"""
