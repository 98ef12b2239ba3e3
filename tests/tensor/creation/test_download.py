"""Tensors from addresses: fetched once, checked, and never half."""

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from morok import Tensor, knobs
from morok.errors import DeviceError

DATA = np.arange(12, dtype=np.int16)


ODD = {
    "/short": b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\nabc",
    "/cut": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nabc",  # IncompleteRead
    "/nothing-said": b"",  # RemoteDisconnected
    "/noise": b"\x00\xff what is this\r\n\r\n",  # BadStatusLine
    "/large": b"HTTP/1.0 200 OK\r\nContent-Length: 99999999999999\r\n\r\nabc",
    "/odd": b"HTTP/1.0 200 OK\r\nContent-Length: abc\r\n\r\nabc",
}


class Handler(SimpleHTTPRequestHandler):
    """Files of a folder; some addresses answer what no server should."""

    asked: ClassVar[list[str]] = []

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(OSError):  # until nobody listens any more
                while True:
                    self.wfile.write(bytes(1 << 16))
        elif self.path in ODD:
            self.wfile.write(ODD[self.path])
            self.close_connection = True
        else:
            super().do_GET()


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "data.bin").write_bytes(DATA.tobytes())
    Handler.asked.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with knobs.override(CACHE_DIR=str(tmp_path / "cache")):
        yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_file_is_fetched_once(address: str) -> None:
    for _ in range(2):
        t = Tensor.from_url(f"{address}/data.bin", "int16", (3, 4))
        np.testing.assert_array_equal(t.numpy(), DATA.reshape(3, 4))
    assert Handler.asked == ["/data.bin"]
    part = Tensor.from_url(f"{address}/data.bin", "int16", (2,), offset=4)
    assert part.tolist() == [2, 3]


def test_a_checksum_is_compared(address: str, tmp_path: Path) -> None:
    right = hashlib.sha256(DATA.tobytes()).hexdigest()
    with pytest.raises(DeviceError, match=f"has the checksum {right}, not 00, and was not kept"):
        Tensor.from_url(f"{address}/data.bin", "int16", sha256="00")
    assert Tensor.from_url(f"{address}/data.bin", "int16", sha256=f"sha256:{right.upper()}").shape == (12,)
    with pytest.raises(DeviceError, match="was downloaded from"):
        Tensor.from_url(f"{address}/data.bin", "int16", sha256="11")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/nothing", "cannot download .*: File not found"),
        ("/short", r"it ended after 3 of 100 bytes|IncompleteRead"),
        ("/cut", "cannot download .*: IncompleteRead"),
        ("/nothing-said", "cannot download .*: Remote end closed connection"),
        ("/noise", "cannot download"),
        ("/large", r"has 99999999999999 bytes, and 17179869184 are allowed; .* from_url\(limit="),
    ],
)
def test_what_goes_wrong_leaves_nothing_behind(address: str, tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        Tensor.from_url(address + path)
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_a_length_that_is_no_number_is_not_believed(address: str) -> None:
    assert bytes(Tensor.from_url(f"{address}/odd").numpy()) == b"abc"


def test_no_file_is_larger_than_the_limit(address: str, tmp_path: Path) -> None:
    assert Tensor.from_url(f"{address}/data.bin", limit=DATA.nbytes).shape == (24,)
    with pytest.raises(DeviceError, match="/endless is larger, and 100000 are allowed"):
        Tensor.from_url(f"{address}/endless", limit=100_000)
    with knobs.override(DOWNLOAD_LIMIT=1), pytest.raises(DeviceError, match="and 1048576 are allowed"):
        Tensor.from_url(f"{address}/endless")
    assert len([p for p in (tmp_path / "cache").rglob("*") if p.is_file()]) == 1


@pytest.mark.parametrize("url", ["https://[::1", "http://[x]/"])
def test_brackets_in_addresses(url: str) -> None:
    with pytest.raises(DeviceError, match=r"is no address|cannot download"):
        Tensor.from_url(url)


@pytest.mark.parametrize("url", ["data.bin", "ftp://example.org/x", "/etc/passwd"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(DeviceError, match="is no address; it begins with one of https, http, file"):
        Tensor.from_url(url)


def test_names_stay_in_the_cache(address: str, tmp_path: Path) -> None:
    """A path in an address cannot leave the folder."""
    from morok.tensor.creation.download import _place

    for name in ("..", "../../x", "%2e%2e", ".hidden", ""):
        place = _place(f"{address}/{name}").resolve()
        assert place.is_relative_to((tmp_path / "cache" / "downloads").resolve())
        assert not place.name.startswith(".")


def test_a_local_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x05\x06")
    with knobs.override(CACHE_DIR=str(tmp_path / "cache")):
        assert Tensor.from_url((tmp_path / "x").as_uri()).tolist() == [5, 6]
