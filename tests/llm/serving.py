"""A server of a model in a thread, for tests."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from morok.llm import Model


@contextmanager
def served(model: Model, **options: Any) -> Iterator[tuple[str, Any]]:
    """The address, and the engine."""
    import uvicorn

    from morok.llm.server import app

    application = app(model, "tiny", **options)
    server = uvicorn.Server(
        uvicorn.Config(application, port=0, log_level="critical", timeout_graceful_shutdown=2)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < deadline and thread.is_alive()
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", application.state.engine
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()
