"""A second line of work beside the main one: what the paper calls a communication stream of its own.

Work handed to a lane runs in the order given, while the main thread goes on. Collectives of a lane go through a process
group that nothing else uses, so their order is the same on all ranks whatever the main threads do meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Lane:
    """One thread. Torch's kernels and gloo's waits release the interpreter's lock, so the main thread runs on.

    After a failure the lane does nothing more: later work raises the same exception, so whoever waits next sees it.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._failure: Exception | None = None

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Run `work` after everything submitted before it."""
        return self._pool.submit(self._run, work)

    def drain(self) -> None:
        """Return when everything submitted has run."""
        self.submit(lambda: None).result()

    def close(self) -> None:
        """Drop what has not begun, and end the thread after what has."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, work: Callable[[], Result]) -> Result:
        if self._failure is not None:
            raise self._failure
        try:
            return work()
        except Exception as error:
            self._failure = error
            raise
