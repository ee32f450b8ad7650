"""File formats: OFRecord, OneRec, TFRecord, WebDataset tars and folders of images.

In: paths. Out: classes with the interface of `flow_data.records.framed.Files`, which read records
by number.
This package must not import loaders, ops or kernels.
"""
