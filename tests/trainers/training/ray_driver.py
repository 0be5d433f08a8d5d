"""What test_launch runs in a process of its own, on two Ray nodes of this machine: a run on a corpus with a corrupt
shard, and a run that loses a worker, then a worker with its node.

Started as `ray_driver.py OUTPUT CORRUPT CORPUS a.b=value ...`; the runs are OUTPUT/corrupt and OUTPUT/elastic, and
OUTPUT/exits has the exit statuses of their commands.
"""

import os
import sys
import time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from tests.trainers.launching import NODE_LOST_AT, WORKER_LOST_AT


def prepare() -> None:
    """In every process of Ray: a training worker on NODE_TO_LOSE is killed as it begins step WORKER_LOST_AT, and its node
    with it at NODE_LOST_AT, once each.
    """
    import os
    import signal
    from pathlib import Path

    from trainers.training import launch

    train = launch._train

    def prepared(*arguments):
        from trainers.engine.engine import Engine

        whole = Engine.train_step

        def train_step(self, batches, step, *others):
            victims = {WORKER_LOST_AT: [os.getpid()], NODE_LOST_AT: [os.getppid(), os.getpid()]}.get(step + 1, [])
            lost = Path(os.environ["OUTPUT"], f"lost-at-{step + 1}")
            if victims and ray.get_runtime_context().get_node_id() == os.environ["NODE_TO_LOSE"] and not lost.exists():
                lost.touch()
                for victim in victims:
                    os.kill(victim, signal.SIGKILL)
                time.sleep(60)
            return whole(self, batches, step, *others)

        Engine.train_step = train_step
        train(*arguments)

    launch._train = prepared


def main() -> int:
    from trainers.__main__ import main as trainers

    output, corrupt, corpus, *settings = sys.argv[1:]
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    variables = {name: os.environ[name] for name in ("PYTHONPATH", "DS_ACCELERATOR", "OMP_NUM_THREADS")}
    variables |= {"NODE_TO_LOSE": node.node_id, "OUTPUT": output, "RAY_CHDIR_TO_TRIAL_DIR": "0"}
    ray.init(
        address=cluster.address,
        log_to_driver=False,
        logging_level="ERROR",
        runtime_env={"env_vars": variables, "worker_process_setup_hook": prepare},
    )
    command = ["pretrain", "--workers", "2", "llama_tiny", *settings]
    refused = trainers([*command, f"corpus={corrupt}", f"run={output}/corrupt"])
    finished = trainers([*command, f"corpus={corpus}", f"run={output}/elastic"])
    Path(output, "exits").write_text(f"{refused} {finished}")
    ray.shutdown()
    cluster.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
