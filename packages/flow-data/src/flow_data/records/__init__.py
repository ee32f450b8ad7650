"""Files of records: OFRecord, TFRecord, WebDataset tars and folders of images."""
