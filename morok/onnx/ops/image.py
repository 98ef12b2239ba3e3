"""Images from files, by Pillow where it is installed."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from morok.errors import UnsupportedModel
from morok.onnx.table import op
from morok.onnx.values import Host, Value

Known = Host
_MOST = 1 << 28  # pixels; a small file may claim to be a huge image


@op("ImageDecoder", since=20, reads=True)
def image_decoder(x: Known, *, pixel_format: str = "RGB") -> Value:
    """An image as (height, width, channels); of what is no image, nothing."""
    try:
        import PIL.Image
    except ImportError:
        raise UnsupportedModel(
            "images are decoded by Pillow, which is not installed: pip install pillow"
        ) from None
    channels = 1 if pixel_format == "Grayscale" else 3
    nothing = Host(np.zeros((0, 0, channels), np.uint8))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns of images that are suspiciously large
            image: Any = PIL.Image.open(io.BytesIO(x.array.tobytes()))
            if image.width * image.height > _MOST:
                return nothing
            pixels = np.array(image.convert("L" if channels == 1 else "RGB"))
    except Exception:  # whatever is wrong with the stream, the specification's answer is an empty matrix
        return nothing
    if channels == 1:
        return Host(pixels[:, :, None])
    return Host(np.ascontiguousarray(pixels[:, :, ::-1] if pixel_format == "BGR" else pixels))
