"""Watches the services of our own Ray while the main thread may hang in a call to them."""

import logging
import threading
from collections.abc import Callable

from arch_search.scheduling.session import Session

LOOK_SECONDS = 0.5

log = logging.getLogger(__name__)


class Guard(threading.Thread):
    """Calls `on_broken` with the reason, once, when Ray's raylet or GCS is gone.

    A thread, because with the GCS dead the main one waits inside Ray until Ray ends the process.
    """

    def __init__(self, session: Session, on_broken: Callable[[str], None]) -> None:
        super().__init__(name="guard", daemon=True)
        self._session, self._on_broken = session, on_broken
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            if why := self._session.broken():
                log.warning("%s", why)
                self._on_broken(why)
                return

    def close(self) -> None:
        """Stop watching: what ends from now on is ended on purpose."""
        self._closed.set()
        self.join()
