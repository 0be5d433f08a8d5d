"""The process that test_launch starts with two Ray nodes on this machine. It launches a run on a corpus with
a corrupt shard, and a run that loses a worker and later a worker together with its node.

Started as `ray_driver.py OUTPUT CORRUPT CORPUS a.b=value ...`. The runs are OUTPUT/corrupt and
OUTPUT/elastic; OUTPUT/exits has the exit statuses of their commands.
"""

import os
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from gristmill.libraries.local_ray import lean_node
from tests.trainers.launching import NODE_LOST_AT, WORKER_LOST_AT


def losing(work, victim_node, output):
    """Wrap `work`, the training of one worker, so that a worker on `victim_node` is killed once at step
    WORKER_LOST_AT, and once together with its node at step NODE_LOST_AT.
    """

    def work_and_lose(arguments):
        import os
        import signal
        import sys
        import time
        from pathlib import Path

        from gristmill.libraries.loading import loading

        with loading("trainers.training.loop"):  # as the command does, which finds most of it loaded
            from trainers.engine.engine import Engine

        whole = Engine.train_step

        def train_step(self, batches, step, *others):
            if "torch._inductor.compile_fx" in sys.modules:
                raise AssertionError("torch's compiler is loaded, which no step needs")
            victims = {WORKER_LOST_AT: [os.getpid()], NODE_LOST_AT: [os.getppid(), os.getpid()]}.get(step + 1, [])
            lost = Path(output, f"lost-at-{step + 1}")
            if victims and ray.get_runtime_context().get_node_id() == victim_node and not lost.exists():
                lost.touch()
                for victim in victims:
                    os.kill(victim, signal.SIGKILL)
                time.sleep(60)
            return whole(self, batches, step, *others)

        Engine.train_step = train_step
        work(arguments)

    return work_and_lose


def main() -> int:
    from trainers.__main__ import main as trainers
    from trainers.training import launch

    output, corrupt, corpus, *settings = sys.argv[1:]
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    with lean_node():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    node = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    # Of this script, which no worker can import, so it travels as it is. What runs in all processes of Ray would load the
    # trainers in each of them.
    launch._work = losing(launch._work, node.node_id, output)
    command = ["pretrain", "--workers", "2", "llama_tiny", *settings]
    refused = trainers([*command, f"corpus={corrupt}", f"run={output}/corrupt"])
    finished = trainers([*command, f"corpus={corpus}", f"run={output}/elastic"])
    Path(output, "exits").write_text(f"{refused} {finished}")
    ray.shutdown()
    cluster.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
