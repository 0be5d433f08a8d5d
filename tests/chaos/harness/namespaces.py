"""Simulated machines, to test network failures.

The machines are namespaces on one Linux host, each with a separate address, processes, host name, /tmp/ray
and shared memory, joined by one switch. They are started with the commands of
deploy/ray_cluster_own_machines.yaml and share all other files.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gristmill.config import load_yaml

ROOT = Path(__file__).parents[3]
DEPLOYED = ROOT / "deploy" / "ray_cluster_own_machines.yaml"
HEAD = "10.99.0.10"
TOKEN = "a-token-of-the-tests-of-the-network"
# A machine is this script in namespaces of its own; it ends with its input, so with the process that started it, too. Bash
# takes note of orphans that end, which dash does not: Ray's workers would not see that the process over them is gone.
_MACHINE = """\
hostname "$NAME"; mount -t tmpfs -o size=256m tmpfs /dev/shm; mkdir -p /tmp/ray; mount --bind "$OWN" /tmp/ray
sh -c "$COMMAND"; echo "started: $?"; read -r _
"""
# Ray takes a machine to be gone that has not answered five times, here within half a minute and not in a minute.
_HEALTH = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "4000"}


def reason_not_to() -> str | None:
    """Return why simulated machines cannot be made here, or None if they can."""
    name = f"gristmill-{os.getpid()}-probe"
    try:
        _ip("netns", "add", name)
        try:
            _ip("-n", name, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
            _ip("-n", name, "link", "add", "probe2", "type", "bridge")
            inside = ["ip", "netns", "exec", name, "unshare", "--mount", "--uts", "--pid", "--fork", "--mount-proc"]
            subprocess.run([*inside, "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True, capture_output=True)
        finally:
            _ip("netns", "delete", name)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", b"") or str(error).encode()).decode().strip()
        return f"no network namespaces here: {said}"
    return None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def start_command(kind: str, memory: int) -> str:
    """Return the command that starts Ray on a `head` or a `worker`, taken from DEPLOYED and adapted to this
    environment.

    It uses the `ray` of this environment, a small object store, and no file that only `ray up` writes.
    """
    (command,) = [c for c in load_yaml(DEPLOYED)[f"{kind}_start_ray_commands"] if " start " in c]
    path, autoscaling = "/shared/gristmill/.venv/bin/ray", " --autoscaling-config=~/ray_bootstrap_config.yaml"
    assert command.count(path) == 1
    assert command.count(autoscaling) == (kind == "head")
    command = command.replace(path, str(Path(sys.executable).with_name("ray"))).replace(autoscaling, "")
    return f"{command} --object-store-memory={memory}"


@dataclass
class Machine:
    """A simulated machine.

    `namespace` is its network namespace, and `cable` is the name of its cable in the namespace `switch`.
    """

    name: str
    address: str
    namespace: str
    switch: str
    cable: str
    home: Path
    process: subprocess.Popen | None = field(default=None, init=False)

    def start(self, kind: str) -> None:
        """Plug the machine in and start Ray on it, as the head or as a worker; return when the start command
        has ended.
        """
        self.heal()
        own, log = self.home / self.name, self.home / f"{self.name}.log"
        own.mkdir(exist_ok=True)
        space = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        variables = {"NAME": self.name, "OWN": str(own), "COMMAND": start_command(kind, 100 << 20), "RAY_HEAD_IP": HEAD}
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *space, "bash", "-c", _MACHINE], stdin=subprocess.PIPE,
                stdout=output, stderr=subprocess.STDOUT, env=environment(self.home, **_HEALTH, **variables), cwd=ROOT,
            )  # fmt: skip
        wait_for(lambda: b"started: " in log.read_bytes() or self.process.poll() is not None, 240, f"{self.name} is up")
        assert log.read_bytes().endswith(b"started: 0\n"), log.read_text()

    def kill(self) -> None:
        """Simulate a loss of power: end all processes at once, with the cable pulled first, so that no
        message gets out.
        """
        if self.process is not None:
            self.cut()
            self.process.kill()
            self.process.communicate()
            self.process = None

    def cut(self) -> None:
        _ip("-n", self.switch, "link", "set", self.cable, "down")

    def heal(self) -> None:
        _ip("-n", self.switch, "link", "set", self.cable, "up")

    def impair(self, *words: str) -> None:
        """Apply a queueing discipline of `tc`, such as `tbf rate 2mbit ...`, to traffic in both directions.

        Without words, remove the discipline.
        """
        for space, device in ((self.switch, self.cable), (self.namespace, "eth0")):
            subprocess.run(["tc", "-n", space, "qdisc", "del", "dev", device, "root"], check=False, capture_output=True)
            if words:
                added = ["tc", "-n", space, "qdisc", "add", "dev", device, "root", *words]
                subprocess.run(added, check=True, capture_output=True)

    def processes(self, title: str) -> list[int]:
        """Return the machine's processes whose title begins with `title`. Ray titles a worker by the task it
        runs.
        """
        listed = subprocess.run(["ip", "netns", "pids", self.namespace], check=True, capture_output=True, text=True)
        return [pid for pid in map(int, listed.stdout.split()) if _title(pid).startswith(title)]

    def signal(self, pids: list[int], number: signal.Signals) -> None:
        """Send a signal to those of the processes that are still running on the machine."""
        for pid in pids:
            if pid in self.processes(""):
                os.kill(pid, number)


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:  # it has ended
        return ""


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return an operator's environment variables on one of the machines, without Ray's variables.

    The start commands set those, and the token is in a file.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k not in ("RANK", "WORLD_SIZE")}
    return {**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def wait_for(met: Callable[[], object], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.02)


@contextmanager
def machines(home: Path, names: list[str]) -> Iterator[list[Machine]]:
    """Make machines with these names and yield them, not yet started; the first has the address HEAD.

    `home` is the home directory of their user and holds the files of each machine. At the end, all their
    processes are killed and their namespaces removed.
    """
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text(TOKEN)
    (home / ".ray" / "auth_token").chmod(0o600)
    prefix = f"gristmill-{os.getpid()}"
    switch, made, found = f"{prefix}-switch", [], []
    try:
        _ip("netns", "add", switch)
        made.append(switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, name in enumerate(names):
            namespace, cable = f"{prefix}-{name}", f"port{number}"
            _ip("netns", "add", namespace)
            made.append(namespace)
            _ip("-n", switch, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("-n", switch, "link", "set", cable, "master", "bridge", "up")
            address = f"10.99.0.{10 + number}"
            _ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", namespace, "link", "set", device, "up")
            _ip("-n", namespace, "route", "add", "default", "dev", "eth0")  # by which Ray finds its own address
            found.append(Machine(name, address, namespace, switch, cable, home))
        yield found
    finally:
        for machine in found:
            machine.kill()
        for namespace in reversed(made):
            _ip("netns", "delete", namespace)
