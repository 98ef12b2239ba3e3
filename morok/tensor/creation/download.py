"""Files from the net, kept in the cache: each address is fetched once.

A file gets its name only when it is complete and its checksum is right, so a broken connection leaves nothing
behind that could be taken for it.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import IO

from morok import knobs
from morok.errors import DeviceError

_SCHEMES = ("https", "http", "file")
_PATIENCE = 60.0  # seconds without any data
_BLOCK = 1 << 20


def downloaded(url: str, sha256: str | None = None, limit: int | None = None) -> Path:
    """The file behind an address, in the cache; compared with a checksum, and never larger than the limit."""
    try:
        scheme = urllib.parse.urlsplit(url).scheme
    except ValueError as error:  # brackets that do not match, say
        raise DeviceError(f"{url!r} is no address: {error}") from None
    if scheme not in _SCHEMES:
        raise DeviceError(f"{url!r} is no address; it begins with one of {', '.join(_SCHEMES)}")
    wanted = None if sha256 is None else sha256.lower().removeprefix("sha256:")
    path = _place(url)
    if not path.exists():
        _fetch(url, path, wanted, knobs.DOWNLOAD_LIMIT.value << 20 if limit is None else limit)
    elif wanted is not None and (found := checksum(path)) != wanted:
        raise DeviceError(f"{path} was downloaded from {url} but has the checksum {found}, not {wanted}")
    return path


def checksum(path: Path) -> str:
    """The SHA-256 of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _place(url: str) -> Path:
    name = Path(urllib.parse.urlsplit(url).path).name
    kept = "".join(c for c in name if c.isalnum() or c in "._-").lstrip(".")[-80:]
    folder = Path(knobs.CACHE_DIR.value) / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:32]
    return folder / (kept or "file")


def _fetch(url: str, path: Path, wanted: str | None, limit: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, name = tempfile.mkstemp(dir=path.parent)
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            _copy(url, file, limit)
        if wanted is not None and (found := checksum(partial)) != wanted:
            raise DeviceError(f"{url} has the checksum {found}, not {wanted}, and was not kept")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _copy(url: str, file: IO[bytes], limit: int) -> None:
    """All of it, or an error. What the server says of the length is compared, and believed no further."""
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE) as answer:
            said = answer.headers.get("Content-Length")
            expected = int(said) if said is not None and said.strip().isdecimal() else None
            if expected is not None and expected > limit:
                raise _too_large(url, f"has {expected} bytes", limit)
            while block := answer.read(_BLOCK):
                if file.tell() + len(block) > limit:
                    raise _too_large(url, "is larger", limit)
                file.write(block)
    except (OSError, urllib.error.URLError, http.client.HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise DeviceError(f"cannot download {url}: {str(why) or type(error).__name__}") from None
    size = file.tell()
    if expected is not None and expected != size:
        raise DeviceError(f"cannot download {url}: it ended after {size} of {expected} bytes")


def _too_large(url: str, what: str, limit: int) -> DeviceError:
    return DeviceError(
        f"{url} {what}, and {limit} are allowed; ask for more with from_url(limit=…) or MOROK_DOWNLOAD_LIMIT"
    )
