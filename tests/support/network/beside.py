"""Mixin that runs a server of the standard library in a thread beside the test."""

from __future__ import annotations

import socketserver
import threading
from types import TracebackType
from typing import Self


class Beside(socketserver.BaseServer):
    """Mixin to inherit before a server class. The server responds within the ``with`` block, and is closed after the
    block."""

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()
