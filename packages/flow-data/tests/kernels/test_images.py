"""Decoding, resizing, normalizing, flipping and cropping of images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flow_data import codec
from flow_data.codec import Normalizer, decode, encode_jpeg, flip, resize
from flow_data.kernels.crops import CropLimits, crop_box
from flow_data.kernels.images import size_keeping_ratio

LIBRARIES = ["as installed", "Pillow alone"]


@pytest.fixture(params=LIBRARIES)
def library(request: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the installed libraries, and without the optional ones."""
    if request.param != LIBRARIES[0]:
        monkeypatch.setattr(codec, "opencv", lambda: None)
        monkeypatch.setattr(codec, "_simplejpeg", lambda: None)
    return str(request.param)


def picture(height: int = 37, width: int = 53) -> Any:
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 4, y * 5, (x + y) * 2], 2).astype(np.uint8)


def test_decoding(library: str) -> None:
    image = picture()
    data = encode_jpeg(image, 95)
    found = decode(data, "RGB")
    assert found.shape == image.shape
    assert found.dtype == np.uint8
    assert np.abs(found.astype(int) - image).mean() < 3
    assert np.array_equal(decode(data, "BGR"), found[..., ::-1])
    assert decode(data, "GRAY").shape == (37, 53, 1)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"\xff\xd8 no image", b"no image at all"])
def test_invalid_images_are_rejected(library: str, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(data)


@pytest.mark.slow
@pytest.mark.representative(r"\[Pillow alone\]", "the decoder that every installation has")
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    patches=st.lists(st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=4))),
    end=st.integers(0, 10_000),
)
def test_no_input_crashes_a_decoder(library: str, patches: Any, end: int) -> None:
    """Damaged JPEGs are decoded or rejected."""
    data = bytearray(encode_jpeg(picture()))
    for place, patch in patches:
        data[place % len(data) : place % len(data) + len(patch)] = patch
    try:
        pixels = decode(bytes(data[: max(1, end % (2 * len(data)))]), "RGB")
    except ValueError:
        return
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3


def test_all_libraries_decode_identically(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_jpeg(picture(64, 64), 90)
    pixels = decode(data)
    monkeypatch.setattr(codec, "opencv", lambda: None)
    monkeypatch.setattr(codec, "_simplejpeg", lambda: None)
    assert np.abs(decode(data).astype(int) - pixels).max() <= 2


@pytest.mark.parametrize("kind", codec.INTERPOLATIONS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_resizing_a_gradient(library: str, kind: str, dtype: Any) -> None:
    image = np.repeat(np.linspace(0, 200, 40, dtype=np.float32)[None, :, None], 30, 0)
    image = np.repeat(image, 3, 2).astype(dtype)
    out = np.zeros((15, 20, 3), dtype)
    assert resize(image, 20, 15, kind, out) is out
    wanted = np.linspace(2.5, 197.5, 20)
    assert np.abs(out.astype(np.float64) - wanted[None, :, None]).max() < 6


@pytest.mark.parametrize("planar", [True, False])
@pytest.mark.parametrize("mirror", [True, False])
def test_normalizing(library: str, planar: bool, mirror: bool) -> None:
    mean, std = np.array([1.0, 50, 100], np.float32), np.array([2.0, 3, 4], np.float32)
    part = picture()[2:20, 3:30]
    wanted = (part.astype(np.float32) - mean) / std
    wanted = wanted[:, ::-1] if mirror else wanted
    wanted = wanted.transpose(2, 0, 1) if planar else wanted
    out = np.empty(wanted.shape, np.float32)
    Normalizer(mean, std, planar)(part, mirror, out)
    np.testing.assert_allclose(out, wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("code", "axes"), [(0, ()), (1, (1,)), (0x10, (0,)), (0x11, (0, 1))])
def test_flipping(code: int, axes: tuple[int, ...]) -> None:
    assert np.array_equal(flip(picture(), code), np.flip(picture(), axes))


SIZES = st.integers(1, 600)
UNIT = st.floats(0, 0.9375, width=32)


@settings(max_examples=60)
@given(SIZES, SIZES, st.data())
def test_random_crops_lie_inside_the_image(height: int, width: int, data: Any) -> None:
    limits = CropLimits(
        tuple(sorted(data.draw(st.tuples(st.floats(0.01, 1), st.floats(0.01, 1))))),  # type: ignore[arg-type]
        tuple(sorted(data.draw(st.tuples(st.floats(0.1, 4), st.floats(0.1, 4))))),  # type: ignore[arg-type]
        data.draw(st.integers(1, 4)),
    )
    draws = data.draw(st.lists(UNIT, min_size=limits.draws, max_size=limits.draws))
    top, left, h, w = crop_box((height, width), limits, draws)
    assert h >= 1
    assert w >= 1
    assert 0 <= top <= height - h
    assert 0 <= left <= width - w


@settings(max_examples=60)
@given(st.integers(1, 900), st.integers(1, 900), st.integers(1, 800), st.booleans())
def test_aspect_ratios_are_preserved(height: int, width: int, target: int, longer: bool) -> None:
    w, h = size_keeping_ratio(height, width, target, 0, 0, longer)
    assert (max if longer else min)(w, h) == target
    assert (w >= h) == (width >= height) or w == h
