"""What deploy/ says, compared with what the service really has: ports, paths, metrics, options."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from limelight.cli import COMMANDS
from limelight.cli.parser import arguments_of, read_arguments
from limelight.serve.app import application
from limelight.serve.limits import Limits
from limelight.serve.metrics import Metrics
from limelight.serve.model_registry import ModelRegistry
from limelight.serve.worker_client import KEY

ROOT = Path(__file__).parent.parent
DEPLOY, LIMITS = ROOT / "deploy", Limits()
PORT = next(a.default for a in arguments_of(COMMANDS["serve"]) if a.name == "port")


def parsed(name):
    return [*yaml.safe_load_all((DEPLOY / name).read_text("utf-8"))]


OBJECTS = {
    one["kind"]: one
    for name in ("kubernetes.yaml", "kubernetes-autoscaling.yaml")
    for one in parsed(name)
}
POD = OBJECTS["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
(COMPOSE,) = parsed("docker-compose.yml")
NGINX = (DEPLOY / "nginx.conf").read_text("utf-8")


def metrics():
    """The names of all metrics that /metrics has."""
    return set(re.findall(r"^# TYPE (\w+)", Metrics().shown().decode(), re.M))


def paths():
    """All paths of the service."""
    return set(application(ModelRegistry({}, LIMITS, Metrics())).app.app.openapi()["paths"])


def environment():
    return {one["name"]: one for one in CONTAINER["env"]}


@pytest.mark.parametrize("words", [CONTAINER["args"], COMPOSE["services"]["replica-1"]["command"]])
def test_the_command_is_one_and_listens_where_it_is_asked(words):
    command, *rest = words
    given = read_arguments(command, COMMANDS[command], rest)
    assert (given["host"], given["port"]) == ("0.0.0.0", PORT)
    assert given["runs"] == ("en-de",)  # which the image has


def test_ports_are_the_same_everywhere():
    (port,) = CONTAINER["ports"]
    assert port["containerPort"] == PORT
    assert f"EXPOSE {PORT}\n" in (ROOT / "Dockerfile").read_text("utf-8")
    (service,) = OBJECTS["Service"]["spec"]["ports"]
    assert service["targetPort"] == port["name"]
    (endpoint,) = OBJECTS["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == port["name"]
    upstream = re.findall(r"server ([\w-]+):(\d+)", NGINX)
    replicas = {name for name in COMPOSE["services"] if name != "balancer"}
    assert (
        {name for name, _ in upstream}
        == replicas
        == {*COMPOSE["services"]["balancer"]["depends_on"]}
    )
    assert {int(number) for _, number in upstream} == {PORT}
    (published,) = COMPOSE["services"]["balancer"]["ports"]
    assert published.endswith(re.search(r"listen (\d+)", NGINX)[1])


def test_probes_ask_for_paths_that_there_are_and_need_no_key():
    probes = {name: CONTAINER[name]["httpGet"]["path"] for name in CONTAINER if "Probe" in name}
    assert probes == {
        "startupProbe": "/readyz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
    }
    (endpoint,) = OBJECTS["PodMonitor"]["spec"]["podMetricsEndpoints"]
    asked = COMPOSE["services"]["replica-1"]["healthcheck"]["test"][-1]
    assert {*probes.values(), endpoint["path"]} <= paths()
    assert f"127.0.0.1:{PORT}/readyz" in asked
    compile(asked, "healthcheck", "exec")


def test_open_requests_have_time_to_finish():
    (command,) = CONTAINER["lifecycle"]["preStop"].values()
    name, seconds = command["command"]
    assert name == "sleep"
    ends = LIMITS.shutdown_seconds + 5  # when uvicorn gives up on connections
    assert POD["spec"]["terminationGracePeriodSeconds"] >= int(seconds) + ends
    grace = COMPOSE["services"]["replica-1"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) >= ends
    ready = CONTAINER["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] < int(seconds)


def test_replicas_are_added_by_a_metric_that_there_is():
    (metric,) = OBJECTS["HorizontalPodAutoscaler"]["spec"]["metrics"]
    name = metric["pods"]["metric"]["name"]
    assert name in metrics()
    assert f"{name}x" not in metrics()
    assert int(metric["pods"]["target"]["averageValue"]) <= LIMITS.batch < LIMITS.queue
    ((rule,),) = (one["rules"]["custom"] for one in parsed("prometheus-adapter.yaml"))
    assert (rule["name"]["as"], rule["seriesQuery"].split("{")[0]) == (name, name)
    scaled = OBJECTS["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert scaled["name"] == OBJECTS["Deployment"]["metadata"]["name"]


def test_labels_keys_and_hosts_fit_together():
    labels = POD["metadata"]["labels"]
    for kind in ("Deployment", "PodDisruptionBudget", "PodMonitor"):
        assert OBJECTS[kind]["spec"]["selector"]["matchLabels"] == labels
    assert OBJECTS["Service"]["spec"]["selector"] == labels
    secret = environment()[KEY]["valueFrom"]["secretKeyRef"]
    (endpoint,) = OBJECTS["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == secret
    for file in (DEPLOY / "kubernetes.yaml", ROOT / "docs" / "scale.md"):
        line = f"kubectl create secret generic {secret['name']} --from-literal={secret['key']}="
        assert line in file.read_text("utf-8")
    assert KEY in COMPOSE["services"]["replica-1"]["environment"]
    given = read_arguments("serve", COMMANDS["serve"], CONTAINER["args"][1:])
    assert OBJECTS["Service"]["metadata"]["name"] in given["allowed_hosts"]
    assert "$(POD_IP)" in given["allowed_hosts"]  # as Prometheus asks
    assert "POD_IP" in environment()


def test_the_balancer_is_as_patient_as_the_service():
    seconds = int(re.search(r"proxy_read_timeout (\d+)s", NGINX)[1])
    assert seconds > LIMITS.seconds
    megabytes = int(re.search(r"client_max_body_size (\d+)m", NGINX)[1])
    assert megabytes * 2**20 >= LIMITS.body
    assert "proxy_buffering off" in NGINX


def test_a_container_may_write_nowhere_but_to_caches():
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"]
    mounts = [mount["mountPath"] for mount in CONTAINER["volumeMounts"]]
    caches = re.findall(r"(?:CACHE|CONFIGDIR)=(\S+)", (ROOT / "Dockerfile").read_text("utf-8"))
    assert caches
    assert all(any(cache.startswith(f"{mount}/") for mount in mounts) for cache in caches)
    assert CONTAINER["resources"]["limits"]["cpu"] == environment()["OMP_NUM_THREADS"]["value"]


TRAINING = DEPLOY / "training"
(JOBSET,), (SKYPILOT,) = parsed("training/jobset.yaml"), parsed("training/skypilot.yaml")
SCRIPTS = {"slurm": (TRAINING / "slurm.sh").read_text("utf-8"), "skypilot": SKYPILOT["run"]}


def launches():
    """The words of each command that starts processes, without the variables of its scheduler."""
    (workers,) = JOBSET["spec"]["replicatedJobs"]
    (pod,) = workers["template"]["spec"]["template"]["spec"]["containers"]
    joined = {name: text.replace("\\\n", " ") for name, text in SCRIPTS.items()}
    lines = {
        name: next(line for line in text.splitlines() if "torchrun --" in line)
        for name, text in joined.items()
    }
    shell = {name: re.sub(r"\$\w+", "2", line) for name, line in lines.items()}
    words = {name: shlex.split(line.rstrip(" &")) for name, line in shell.items()}
    return {"jobset": pod["command"], **words}


@pytest.mark.parametrize(("name", "words"), launches().items())
def test_trainings_are_launched_with_options_that_there_are(name, words):
    from torch.distributed.run import parse_args

    theirs = parse_args(words[words.index("torchrun") + 1 :])
    command, *rest = theirs.training_script_args
    assert (theirs.module, theirs.training_script) == (True, "limelight")
    assert theirs.rdzv_backend == "c10d"
    assert theirs.rdzv_endpoint.endswith(":29500")
    assert theirs.max_restarts == 3
    given = read_arguments(command, COMMANDS[command], rest)
    assert str(given["run"]).endswith("/wmt") or name == "slurm"
    assert "--train.fsdp" in rest


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_scripts_are_shell_and_name_what_they_use(script):
    """Whether a shell can read it, and whether every variable is its own or its scheduler's."""
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    with pytest.raises(subprocess.CalledProcessError):  # the control
        subprocess.run(["bash", "-n"], input=f"{script}\nif", text=True, check=True)
    used = set(re.findall(r"\$\{?(\w+)", script))
    ours = set(re.findall(r"^\s*(\w+)=", script, re.M)) | set(SKYPILOT["envs"])
    assert {name for name in used - ours if not name.startswith(("SLURM_", "SKYPILOT_"))} == set()


def test_pods_find_each_other_and_share_a_disk():
    spec = JOBSET["spec"]
    (workers,) = spec["replicatedJobs"]
    job = workers["template"]["spec"]
    pod, words = job["template"]["spec"], launches()["jobset"]
    first = f"{JOBSET['metadata']['name']}-{workers['name']}-0-0.{spec['network']['subdomain']}"
    assert f"--rdzv-endpoint={first}:29500" in words
    assert job["parallelism"] == job["completions"] == 2
    assert "--nnodes=2" in words
    (container,) = pod["containers"]
    assert f"--nproc-per-node={container['resources']['limits']['nvidia.com/gpu']}" in words
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    assert f"--run={mounts['runs']}/wmt" in words
