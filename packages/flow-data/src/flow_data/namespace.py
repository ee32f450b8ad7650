"""The names of flow-data in ``oneflow.data``."""

from flow_data.batches import batches
from flow_data.decoders import (
    ImageDecoderRandomCropResize,
    OFRecordBytesDecoder,
    OFRecordImageDecoder,
    OFRecordImageDecoderRandomCrop,
    OFRecordRawDecoder,
    OneRecDecoder,
    image_decoder_random_crop_resize,
    ofrecord_bytes_decoder,
    ofrecord_image_classification_reader,
    ofrecord_image_decoder,
    ofrecord_image_decoder_random_crop,
    ofrecord_raw_decoder,
    onerec_decoder,
    record_decoder,
)
from flow_data.legacy import (
    BlobConf,
    BytesListCodec,
    ImageCodec,
    ImagePreprocessor,
    ImageResizePreprocessor,
    NormByChannelPreprocessor,
    RawCodec,
    decode_ofrecord,
)
from flow_data.mnist import load_mnist
from flow_data.readers import (
    MegatronGPTMMapDataLoader,
    coco_reader,
    decode_random,
    image_folder_reader,
    megatron_gpt_mmap_data_loader,
    ofrecord_loader,
    ofrecord_reader,
    onerec_reader,
    record_reader,
    tfrecord_reader,
    webdataset_reader,
)
from flow_data.records.ofrecord import OFRecordWriter, encode_record, read_ofrecords

__all__ = [
    "BlobConf", "BytesListCodec", "ImageCodec", "ImageDecoderRandomCropResize", "ImagePreprocessor",
    "ImageResizePreprocessor", "MegatronGPTMMapDataLoader", "NormByChannelPreprocessor",
    "OFRecordBytesDecoder", "OFRecordImageDecoder", "OFRecordImageDecoderRandomCrop",
    "OFRecordRawDecoder", "OFRecordWriter", "OneRecDecoder", "RawCodec", "batches", "coco_reader",
    "decode_ofrecord", "decode_random", "encode_record", "image_decoder_random_crop_resize",
    "image_folder_reader", "load_mnist", "megatron_gpt_mmap_data_loader", "ofrecord_bytes_decoder",
    "ofrecord_image_classification_reader", "ofrecord_image_decoder",
    "ofrecord_image_decoder_random_crop", "ofrecord_loader", "ofrecord_raw_decoder",
    "ofrecord_reader", "onerec_decoder", "onerec_reader", "read_ofrecords", "record_decoder",
    "record_reader", "tfrecord_reader", "webdataset_reader",
]  # fmt: skip
