"""A server of the standard library that serves beside the test."""

from __future__ import annotations

import socketserver
import threading
from types import TracebackType
from typing import Self


class Beside(socketserver.BaseServer):
    """To be inherited before a server: it answers within ``with``, and is closed after it."""

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()
