"""The profiles `gpu` and `vllm` where there is no GPU: the services without their reservations, vLLM's build for CPUs."""

from collections.abc import Iterator

import pytest

from grpo_core.run.journal import read_journal
from tests.compose.evidence import problems, run_dir_of
from tests.compose.runs import TINY, start_tiny
from tests.compose.stack import ComposeStack

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]
MODEL = "bundled:smollm2-135m"
VARIABLES = {
    "GRPO_VLLM": "cpu",
    "GRPO_VLLM_DTYPE": "float32",
    "GRPO_VLLM_CONTEXT": "128",
    "GRPO_VLLM_KV_CACHE_GIB": "1",
    "GRPO_GPU_CPUS": "2",
    "GRPO_GPU_MEMORY": "8G",
    "GRPO_CPU_WORKERS": "0",
}
SERVER = "http://vllm:8000"
STEPS = 4


@pytest.fixture
def with_vllm(stack: ComposeStack) -> Iterator[ComposeStack]:
    """The stack with both services of the profiles, in the place of the worker without a GPU."""
    script = f"from grpo_core.policy.sources.find import resolve_model; print(resolve_model({MODEL!r}))"
    model = stack.run_in("sweep-worker", "python", "-c", script).strip()
    files = ("docker-compose.yml", "docker/without-gpu.yml")
    variables = {**VARIABLES, "GRPO_VLLM_MODEL": model}
    both = ComposeStack(stack.folder, stack.project, files=files, profiles=("gpu", "vllm"), variables=variables)
    stack.compose("stop", "worker")
    try:
        both.build("vllm")
        both.up("gpu-worker", "vllm", seconds=600)
        yield both
    finally:
        for service in ("gpu-worker", "vllm"):
            if both.state(service):
                both.remove(service)
        stack.up("worker")


def test_a_run_takes_its_rollouts_from_the_server_beside_its_worker(with_vllm: ComposeStack) -> None:
    run_id = start_tiny(
        with_vllm,
        "by-vllm",
        steps=STEPS,
        **{
            **TINY,
            "model.source": MODEL,
            "model.dtype": "float32",
            "rollout.engine": "vllm",
            "rollout.vllm.url": SERVER,
            "rollout.max_prompt_tokens": 64,
            "data.task_args": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
            "rewards": [{"fn": "reasoning_gym"}],
            "optimizer.lr": 1e-4,
        },
    )
    run = with_vllm.finished(run_id, 1200)
    assert run["state_name"] == "Completed", (run["state"], with_vllm.log("vllm")[-3000:])
    run_dir = run_dir_of(with_vllm, "by-vllm")
    assert problems(with_vllm, run_dir, STEPS) == []
    records = read_journal(run_dir.journal_file)
    metrics = [record.data["metrics"] for record in records if record.kind == "step"]
    # What the server sampled with are the trainer's weights, which each step has changed.
    assert metrics[1]["kl/init/drift"] > 1e-4
    assert max(each["kl/sampler/k3"] for each in metrics) < 1e-6
    assert with_vllm.log("vllm").count('"POST /v1/completions HTTP/1.1" 200') >= STEPS


def test_the_server_refuses_who_has_no_key(with_vllm: ComposeStack) -> None:
    ask = (
        "import sys, urllib.request, urllib.error\n"
        "for key in ('', 'Bearer wrong'):\n"
        "    request = urllib.request.Request(sys.argv[1] + '/v1/models', headers={'Authorization': key})\n"
        "    try: print(urllib.request.urlopen(request, timeout=10).status)\n"
        "    except urllib.error.HTTPError as error: print(error.code)"
    )
    assert with_vllm.run_in("gpu-worker", "python", "-c", ask, SERVER).split() == ["401", "401"]
