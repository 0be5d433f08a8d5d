"""SIGTERM during a run and after it."""

import os
import signal
import threading

import pytest

from trainers.training.stop_signal import stop_signal


def test_sigterm_sets_the_event_and_then_does_what_it_did_before():
    before = signal.getsignal(signal.SIGTERM)

    def fail():
        with stop_signal() as stop:
            assert not stop.is_set()
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.wait(10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert signal.getsignal(signal.SIGTERM) is before


def test_another_thread_leaves_the_handler_alone():
    before, found = signal.getsignal(signal.SIGTERM), []

    def ask():
        with stop_signal() as stop:
            found.append((signal.getsignal(signal.SIGTERM), stop.is_set()))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [(before, False)]
