"""Start Ray on this machine without its dashboard, autoscaler and log monitor."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Methods of Ray's `Node`. They start what serves the dashboard, asks a cloud for more nodes, and shows the output of workers.
_NEEDLESS = ("start_api_server", "start_monitor", "start_log_monitor")
# A function that imports what the dashboard needs, 0.3 s of processor time, and returns None if it can.
_CHECK = "get_dashboard_dependency_error"


def start_local_ray(**options: Any) -> None:
    """Start Ray on this machine without its dashboard, autoscaler and log monitor. `options` are passed to
    `ray.init`.
    """
    import ray

    # Else `ray.init` waits for workers that Ray starts in advance, for ever if these are killed (ray-project/ray#40131).
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    with lean_node():
        # Without an address Ray would join the cluster that was started last on this machine.
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR", **options)


@contextmanager
def lean_node() -> Iterator[None]:
    """Within the block, make Ray start head nodes without the dashboard, the autoscaler and the log monitor,
    which take longer to start than the rest of Ray. Has no effect on internal functions that other versions
    of Ray have renamed.
    """
    from ray._private import utils
    from ray._private.node import Node

    places = [*((Node, name) for name in _NEEDLESS), (utils, _CHECK)]
    left_out = [(place, name, getattr(place, name)) for place, name in places if hasattr(place, name)]
    try:
        for place, name, _ in left_out:
            setattr(place, name, lambda *arguments, **named: None)
        yield
    finally:
        for place, name, function in left_out:
            setattr(place, name, function)
