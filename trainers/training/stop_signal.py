"""SIGTERM asks a worker to save a checkpoint and end."""

import signal
import threading


def stop_signal() -> threading.Event:
    """Return an event that SIGTERM sets. Outside the main thread no handler can be installed, and nothing
    sets it.
    """
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
    return stop
