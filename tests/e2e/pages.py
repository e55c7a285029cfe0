"""The commands of the documentation: where they stand, and what a test does with each."""

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
ELSEWHERE = {
    "coming_from_trl.md": "tests/e2e/test_coming_from_trl.py follows it",
    "operations.md": "tests/compose runs back-up and restore, and starts and ends the stack",
}
"""Pages whose commands another test runs."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What is done with the commands that a pattern matches, from their first to their last character."""

    pattern: str
    phrase: str = ""
    """A regular expression that is found in what the command prints."""
    code: int = 0
    """Its exit code."""
    instead: dict[str, str] = field(default_factory=dict)
    """What of the command is replaced by what."""
    not_run: str = ""
    """Why it is not run; its verb and its options are looked up instead."""


RUN, STOPPED, DAMAGED, SWEEP = "runs/<run>", "runs/stopped", "runs/damaged", "runs/<sweep>"
SERVERS = "starts servers, which tests/e2e/test_stack.py does"
LONG = "takes many minutes"
VLLM = "needs vLLM"
RESUMED = "page +runs/stopped/index.html|already finished"
GPUS_OR_HUB = "needs GPUs, or the hub"
NODES = "needs other nodes, for which tests/integration/test_launch.py has stand-ins"

RULES = (
    Rule(pattern=r"make train.*", phrase=r"held-out greedy accuracy"),
    Rule(pattern=r"make (up|down)", not_run=SERVERS),
    Rule(pattern=r"make (test|test-all|check|format|mutants)", not_run=LONG),
    Rule(pattern=r"make vllm.*", not_run=VLLM),
    Rule(pattern=r"(GRPO_\S+ )*make gpu-check.*", not_run=LONG),
    Rule(pattern=r"grpo train .*rollout\.engine=vllm.*", not_run=VLLM),
    Rule(pattern=r"(PET_\S+ )?grpo (train my\.yaml|join) .*|export PET_.*", not_run=NODES),
    Rule(
        pattern=r"(CUDA_VISIBLE_DEVICES=\d )?grpo train gsm8k_\S+80gb.*|grpo check .*=hub:.*|export HF_TOKEN.*",
        not_run=GPUS_OR_HUB,
    ),
    Rule(pattern=r"hf upload .*", not_run=GPUS_OR_HUB),
    Rule(pattern=r"pip install 'grpo-flow.*|wandb login", not_run="fetches a package, or asks for a key"),
    Rule(pattern=r"grpo train .*tracking\.also=.*", not_run="no such tracker here; tests/integration/test_also.py feeds them"),
    Rule(
        pattern=r"grpo train --continue .*",
        phrase="forked from .*/runs/one at step 4",
        instead={RUN: "runs/one", "training.steps=120": "training.steps=5", "training.steps=100": "training.steps=5"},
    ),
    Rule(
        pattern=r"grpo fork .*",
        phrase="forked from .*/runs/one at step [34]",
        instead={RUN: "runs/one", "training.steps=120": "training.steps=5"},
    ),
    Rule(pattern=r"grpo try .*", phrase="initial policy", instead={RUN: "runs/one"}),
    Rule(pattern=r"grpo train --resume \S+", phrase=RESUMED, instead={RUN: STOPPED}),
    Rule(pattern=r"grpo train --resume \S+ --repair .*", phrase="page +runs/damaged/index.html", instead={RUN: DAMAGED}),
    Rule(pattern=r"grpo train --resume \S+ training\..*", phrase=RESUMED, instead={RUN: STOPPED}),
    Rule(pattern=r"grpo train shapes_tiny_cpu", not_run="a training of minutes"),
    Rule(pattern=r"grpo train first/config\.yaml", not_run="a training of minutes, which tests of `grpo init` run"),
    Rule(pattern=r"grpo train .*", phrase="held-out greedy accuracy", instead={"path/to/train.jsonl": "train.jsonl"}),
    Rule(pattern=r"grpo check .*", phrase="the configuration is valid", instead={"path/to/train.jsonl": "train.jsonl"}),
    Rule(pattern=r"grpo import-config .*", phrase=r"keys of TRL [\d.]+: .* mapped", instead={"configs/mine": "configs/new"}),
    Rule(pattern=r"grpo status <run>|grpo status runs/<run>", phrase="finished", instead={RUN: "runs/one"}),
    Rule(pattern=r"grpo status last", phrase="reference sync|runs have ended"),
    Rule(pattern=r"grpo status", phrase="nothing is up", code=1),
    Rule(pattern=r"grpo runs( .*)?", phrase="finished", instead={SWEEP: "runs/sweep"}),
    Rule(pattern=r"grpo init \S+ --model .*", not_run="a model and rows of one's own, as tests/e2e/test_starter.py has"),
    Rule(pattern=r"grpo init \S+", phrase="config.yaml"),
    Rule(pattern=r"grpo compare .*", phrase="html", instead={RUN: "runs/one", "runs/<other>": STOPPED, "runs/<fork>": STOPPED}),
    Rule(pattern=r"grpo evaluate .*", phrase=r"greedy_accuracy: [01]\.", instead={RUN: "runs/one"}),
    Rule(pattern=r"grpo export .*--(best|step).*", not_run="a run of another length; tests/integration/test_export.py"),
    Rule(pattern=r"grpo export .*", phrase="exported: ", instead={RUN: "runs/one"}),
    Rule(pattern=r"grpo reproduce \S+ training\.seed=1", phrase="not identical|differs", code=4, instead={RUN: "runs/one"}),
    Rule(
        pattern=r"grpo reproduce .*",
        phrase="identical: [0-9]+ figures",
        instead={"<MLflow run id or runs/<run>>": "runs/one", RUN: "runs/one"},
    ),
    Rule(pattern=r"grpo track .*", phrase=r"FINISHED\nMLflow +mlflow ui", instead={RUN: "runs/one"}),
    Rule(pattern=r"grpo clean( .*)?", phrase="", instead={"runs/x": "runs/one"}),
    Rule(pattern=r"grpo sweep .*--check", phrase="the sweep is valid"),
    Rule(pattern=r"grpo sweep .*--plan.*", phrase="nothing of the sweep was run"),
    Rule(pattern=r"grpo sweep --resume .*", phrase="report +.*runs/sweep/", instead={SWEEP: "runs/sweep"}),
    Rule(
        pattern=r"grpo sweep --extend .*",
        phrase="runs +4 finished",
        instead={SWEEP: "runs/sweep", "seeds=[0,1,2,3]": "seeds=[0,1]"},
    ),
    Rule(pattern=r"grpo sweep .*", phrase="report +"),
    Rule(pattern=r"grpo why .*", phrase="reward: ", instead={RUN: "runs/one"}),
    Rule(pattern=r"grpo samples .*", phrase="of 8 prompts|of [0-9]+ right", instead={RUN: "runs/one"}),
    Rule(pattern=r"grpo report runs/<run>", phrase="page +runs/one/index.html", instead={RUN: "runs/one"}),
    Rule(pattern=r"grpo report .*", phrase="report +.*runs/sweep/", instead={SWEEP: "runs/sweep"}),
    Rule(pattern=r"prefect deployment run .*", not_run="needs the stack, which tests/e2e/test_stack.py starts"),
    Rule(pattern=r"prefect flow-run .*", not_run="needs the stack, as above"),
    Rule(pattern=r"grpo ui|mlflow ui .*", not_run="a server that does not end"),
    Rule(pattern=r"PYTHON -m pip install .*", not_run="changes an environment"),
    Rule(pattern=r"\. \.venv/bin/activate", not_run="changes the shell alone"),
)


def commands_of(page: Path) -> list[str]:
    """Return the commands of a page's `sh` blocks, without their comments."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [command for line in lines if (command := re.split(r"(?:^|\s{1,})#\s", line)[0].strip())]


def all_commands() -> dict[str, list[str]]:
    """Return {command: the pages that hold it}, of pages whose commands no other test runs."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for command in commands_of(page) if page.name not in ELSEWHERE else ():
            found.setdefault(command, []).append(page.name)
    return found


def rule_of(command: str) -> Rule | None:
    return next((rule for rule in RULES if re.fullmatch(rule.pattern, command)), None)


def as_run(command: str, rule: Rule) -> str:
    for text, other in rule.instead.items():
        command = command.replace(text, other)
    return command


COMMANDS = all_commands()
RUN = [command for command in COMMANDS if (rule := rule_of(command)) is not None and not rule.not_run]
LOOKED_UP = [command for command in COMMANDS if (rule := rule_of(command)) is not None and rule.not_run]
