"""The examples for clusters: each command, key and variable that they name is one that exists."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from flows.cli.app import VERBS
from grpo_core.config import load
from tests.unit.test_nodes import NODES

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"
SCHEDULERS = {"SLURM_NNODES", "SLURM_NODEID", "SLURM_JOB_NODELIST", "JOB_COMPLETION_INDEX", "RUN", "HF_HOME"}
"""Variables that Slurm and Kubernetes set, and those of the example itself."""


def script_of(file: Path) -> str:
    if file.suffix == ".sh":
        return file.read_text()
    (node,) = yaml.safe_load(file.read_text())["spec"]["replicatedJobs"]
    (container,) = node["template"]["spec"]["template"]["spec"]["containers"]
    given = "".join(f"export {one['name']}={one['value']}\n" for one in container["env"])
    return given + container["command"][-1]


@pytest.mark.parametrize("file", sorted(FOLDER.iterdir()), ids=lambda file: file.name)
def test_an_example_names_what_exists(file: Path) -> None:
    script = script_of(file)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    named = set(re.findall(r"\$\{?([A-Z_]+)", script)) | set(re.findall(r"\b([A-Z_]+)=", script))
    assert set(NODES) <= named <= {*NODES, *SCHEDULERS}
    commands = re.findall(r"(?:exec |    )grpo (\w+)(.*)", script)
    assert {verb for verb, _ in commands} == {"train", "join"} <= VERBS.keys()
    (started,) = [arguments.split() for _, arguments in commands if "processes" in arguments]
    config = load(started[0], [one for one in started[1:] if re.match(r"\w+(\.\w+)+=", one)]).config
    assert config.training.processes == 16


def test_the_pods_of_the_job_are_the_nodes_of_the_training() -> None:
    job = yaml.safe_load((FOLDER / "jobset.yaml").read_text())
    (node,) = job["spec"]["replicatedJobs"]
    pods, (container,) = node["template"]["spec"], node["template"]["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert str(pods["completions"]) == str(pods["parallelism"]) == variables["PET_NNODES"]
    assert pods["completions"] * container["resources"]["limits"]["nvidia.com/gpu"] == 16
    name = job["metadata"]["name"]
    assert variables["PET_MASTER_ADDR"] == f"{name}-{node['name']}-0-0.{name}"
