"""The ops of oneflow_yolov3, whose own kernels are a library for OneFlow's runtime."""
