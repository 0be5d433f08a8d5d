"""The files of deploy/ and ray_cluster.yaml are valid for the tools that read them, and the commands in them exist."""

import configparser
import gzip
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from gristmill.config import load_yaml
from pipelines.commands.submit.submission import describe
from tests.conftest import FASTTEXT_BEGIN

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CLUSTERS = [ROOT / "ray_cluster.yaml", DEPLOY / "ray_cluster_own_machines.yaml"]
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
SERVICES = sorted((DEPLOY / "systemd").glob("*.service"))
IMAGE = re.compile(r"image: (\S+)")


def limits(config):
    """Yield errors that Ray's schema misses, such as a node type that may outgrow the cluster or that cannot grow at all."""
    types = config["available_node_types"]
    for name, node in types.items():
        if node["max_workers"] > config["max_workers"]:
            yield f"{name}: max_workers is {node['max_workers']}, that of the cluster {config['max_workers']}"
        if node["min_workers"] > node["max_workers"]:
            yield f"{name}: min_workers is more than max_workers"
        if name != config["head_node_type"] and node["max_workers"] == 0:
            yield f"{name}: max_workers is 0"
        if name != config["head_node_type"] and not node["resources"].get("CPU"):
            yield f"{name}: without CPUs no task is placed on it"
    if sum(node["min_workers"] for node in types.values()) > config["max_workers"]:
        yield "min_workers add up to more than max_workers"


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.name)
def test_rays_own_schema_takes_the_clusters(path):
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(load_yaml(path)))
    broken = load_yaml(path) | {"idle_timeout": 1}
    with pytest.raises(Exception, match="idle_timeout"):
        validate_config(prepare_config(broken))


def test_no_node_type_outgrows_the_cluster():
    config = load_yaml(ROOT / "ray_cluster.yaml")
    assert list(limits(config)) == []
    config["available_node_types"]["build_spot"]["max_workers"] = config["max_workers"] + 1
    config["available_node_types"]["train_spot"] |= {"min_workers": 30, "max_workers": 20}
    config["available_node_types"]["build_on_demand"]["min_workers"] = 16
    assert len(list(limits(config))) == 3


def test_the_head_does_no_work_and_spot_comes_before_on_demand():
    config = load_yaml(ROOT / "ray_cluster.yaml")
    types = config["available_node_types"]
    assert types[config["head_node_type"]]["resources"] == {"CPU": 0, "GPU": 0}
    for kind in ("build", "train"):
        spot, other = types[f"{kind}_spot"], types[f"{kind}_on_demand"]
        assert spot["resources"] == other["resources"]
        assert spot["priority"] > other["priority"]
        market = spot["node_config"].pop("InstanceMarketOptions")
        assert market == {"MarketType": "spot"}
        assert spot["node_config"] == other["node_config"]


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.name)
def test_clusters_need_a_token_and_show_their_dashboard_to_themselves_alone(path):
    config = load_yaml(path)
    starts = [c for k in ("head", "worker") for c in config[f"{k}_start_ray_commands"] if " start " in c]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in command for command in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert any(target.endswith(".ray/auth_token") for target in config["file_mounts"])
    assert not re.search(r"(?i)access_key|secret_key|password|AKIA", path.read_text())


def test_machines_one_owns_are_all_named():
    config = load_yaml(DEPLOY / "ray_cluster_own_machines.yaml")
    assert config["max_workers"] == len(config["provider"]["worker_ips"])
    assert "--num-cpus=0" in config["head_start_ray_commands"][1]


def documents():
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            yield pytest.param(document, id=f"{path.stem}-{document['metadata']['name']}")


def violations(value, schema, path=""):
    """Yield where a value breaks a Kubernetes OpenAPI schema: wrong types, missing or unknown fields, values outside an
    enumeration.
    """
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or isinstance(value, bool):
            yield f"{path}: expected a number or text"
        return
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "number": int | float, "boolean": bool}
    kind = kinds.get(schema.get("type"), object)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind not in (bool, object)):
        yield f"{path}: got {type(value).__name__}, expected {schema['type']}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{path}: got {value!r}, allowed {schema['enum']}"
    elif isinstance(value, dict):
        yield from (f"{path}.{name}: is missing" for name in schema.get("required", ()) if name not in value)
        rest = schema.get("additionalProperties")
        for name, entry in value.items():
            if name in schema.get("properties", {}):
                yield from violations(entry, schema["properties"][name], f"{path}.{name}")
            elif isinstance(rest, dict):
                yield from violations(entry, rest, f"{path}.{name}")
            elif "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{path}.{name}: no such field"
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from violations(entry, schema["items"], f"{path}[{number}]")


@pytest.fixture(scope="module")
def definitions(shared_data):
    found = {}
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted((shared_data / "kuberay").glob("*.yaml.gz")):
        definition = yaml.load(gzip.decompress(path.read_bytes()), Loader=loader)["spec"]
        version = next(entry for entry in definition["versions"] if entry["name"] == "v1")
        found[definition["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    if not found:
        pytest.skip("no KubeRay definitions in the development data")
    return found


@pytest.mark.parametrize("document", list(documents()))
def test_kuberay_takes_the_manifests(document, definitions):
    assert document["apiVersion"] == "ray.io/v1"
    assert list(violations(document, definitions[document["kind"]])) == []


def test_the_walk_finds_what_is_wrong(definitions):
    document = yaml.safe_load((DEPLOY / "kubernetes" / "ray_cluster.yaml").read_text())
    spec = document["spec"]
    spec["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0  # a number, where text is wanted
    spec["workerGroupSpecs"][0]["maxReplica"] = 1
    del spec["workerGroupSpecs"][1]["template"]
    spec["authOptions"]["mode"] = "password"
    spec["workerGroupSpecs"][2]["template"]["spec"]["containers"][0]["imagePullpolicy"] = "Always"
    found = "\n".join(violations(document, definitions["RayCluster"]))
    for expected in (
        "num-cpus: got int",
        "maxReplica: no such",
        "[1].template: is missing",
        "'password'",
        "imagePullpolicy",
    ):
        assert expected in found
    assert len(found.splitlines()) == 5


def clusters_of(document):
    spec = document["spec"]
    spec = spec.get("jobTemplate", spec)
    return spec.get("rayClusterSpec", spec)


@pytest.mark.parametrize("document", list(documents()))
def test_manifests_need_a_token_and_leave_the_head_alone(document):
    cluster = clusters_of(document)
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert f"ray=={cluster['rayVersion']}" in pins
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            wanted, most = container["resources"]["requests"], container["resources"]["limits"]
            assert wanted["memory"] == most["memory"]  # Ray plans with the limit
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["maxReplicas"]


def test_the_image_is_the_one_of_the_dockerfile():
    named = {image for path in MANIFESTS for image in IMAGE.findall(path.read_text())}
    (built,) = re.findall(r"docker build -f deploy/Dockerfile -t (\S+) \.", (DEPLOY / "Dockerfile").read_text())
    assert named == {built}
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert built.endswith(f"/gristmill:{version}")


def test_the_image_runs_without_rights_and_takes_no_secrets():
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert any(line.startswith("USER ") and line != "USER root" for line in lines)
    for line in lines:
        if line.startswith("COPY ") and line != "COPY . .":
            assert all((ROOT / name).exists() for name in line.split()[1:-1])
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".*", "data", "runs", "**/*.key", "**/*.pem"} <= set(ignored)


def job_commands():
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            spec = document["spec"].get("jobTemplate", document["spec"])
            if "entrypoint" in spec:
                yield pytest.param(spec["entrypoint"], id=document["metadata"]["name"])


@pytest.mark.parametrize("entrypoint", list(job_commands()))
def test_the_jobs_of_the_manifests_would_be_taken_for_submission(entrypoint, tmp_path):
    interpreter, *words = shlex.split(entrypoint)
    assert interpreter == "/usr/local/bin/python"
    words = with_a_model([word.replace("/opt/gristmill", str(ROOT)) for word in words], tmp_path)
    parse(words)
    describe(("python", *words), ROOT, None)


def with_a_model(words, folder):
    (folder / "lid.176.ftz").write_bytes(FASTTEXT_BEGIN)
    return [word.replace("/shared/models", str(folder)) for word in words]


def parse(words):
    import importlib

    module = importlib.import_module(f"{words[1]}.__main__")
    options, rest = module.parser().parse_known_args(words[2:])
    assert all("=" in word and not word.startswith("-") for word in rest)
    return options


def unit(path):
    config = configparser.RawConfigParser(strict=False)
    config.optionxform = str
    config.read_string(path.read_text().replace("\\\n", ""))
    return config


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_services_submit_what_would_be_taken(path, tmp_path):
    service = unit(path)
    assert service["Service"]["Type"] == "oneshot"
    assert "RAY_AUTH_MODE=token" in service["Service"]["Environment"]
    shell, flag, script = shlex.split(service["Service"]["ExecStart"])
    assert (shell, flag) == ("/bin/bash", "-c")
    # What the shell would run, as words: a stand-in for the interpreter prints its arguments.
    stand_in = tmp_path / ".venv" / "bin" / "python"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text("#!/bin/bash\nprintf '%s\\n' \"$@\"\n")
    stand_in.chmod(0o755)
    script = script.replace("%%", "%")
    result = subprocess.run(["/bin/bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    options = parse(result.stdout.splitlines())
    assert options.follow
    assert options.retries > 0
    assert Path(options.python).is_absolute()
    words = with_a_model(options.words, tmp_path)
    assert describe(words, ROOT, options.slot).slot == options.slot
    parse(list(options.words[1:]))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not on this machine")
def test_systemd_takes_the_units():
    units = [str(path) for path in sorted((DEPLOY / "systemd").iterdir())]
    assert len(units) == 4
    result = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_every_service_has_its_timer():
    for path in SERVICES:
        timer = unit(path.with_suffix(".timer"))
        assert timer["Timer"]["Persistent"] == "yes"
        assert timer["Timer"]["OnCalendar"].endswith("UTC")


def test_the_slurm_script_starts_one_ray_with_a_token_of_its_own(tmp_path):
    """The script runs with stand-ins for Slurm's `scontrol` and `srun`."""
    for name, text in {
        "scontrol": "echo node-a; echo node-b",
        "srun": 'echo "SRUN $*"; stat -c "TOKEN %a" "$RAY_AUTH_TOKEN_PATH"; echo "MODE $RAY_AUTH_MODE $RAY_ADDRESS"; exit 5',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {
        "JOB_ID": "77",
        "JOB_NODELIST": "node-[a-b]",
        "JOB_NUM_NODES": "2",
        "CPUS_PER_TASK": "8",
        "GPUS_ON_NODE": "4",
    }
    environment = {f"SLURM_{name}": value for name, value in slurm.items()}
    path = f"{Path(sys.executable).parent}:{tmp_path}:/usr/bin:/bin"
    environment |= {"PATH": path, "HOME": str(tmp_path), "GRISTMILL": str(ROOT)}
    command = ["bash", str(DEPLOY / "slurm.sh"), "python", "-m", "trainers", "pretrain", "a b"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 5, result.stderr  # that of the command, so that Slurm knows
    told, token, mode = result.stdout.splitlines()
    assert "ray symmetric-run --address node-a:20077 --min-nodes 2 --num-cpus 8 --num-gpus 4" in told
    assert told.endswith("-- python -m trainers pretrain a b")
    assert token == "TOKEN 600"
    assert mode == "MODE token node-a:20077"
    assert not list(tmp_path.glob(".gristmill-token*"))
    no_command = subprocess.run(["bash", str(DEPLOY / "slurm.sh")], env=environment, capture_output=True, check=False)
    assert no_command.returncode == 2
