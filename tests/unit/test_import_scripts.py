"""The straight part of a shell script is read for its training command, as a shell would expand it, and never executed."""

from pathlib import Path
from typing import Any

import pytest

from grpo_core.errors import ConfigError
from grpo_core.interop.files import flatten_sections
from grpo_core.interop.shell import MAX_CHARACTERS
from tests.support.imports import convert, entry_of

START = "python train.py --num_generations 4 --per_device_train_batch_size 8 --max_steps 100"


@pytest.mark.parametrize(
    ("before", "argument", "expected"),
    [
        ("", "--run_name plain", "plain"),
        ("", "--run_name='single $X'", "single $X"),
        ("X=1", '--run_name "double $X"', "double 1"),
        ("X=1", "--run_name \"it's $X, isn't it\"", "it's 1, isn't it"),
        ("X=a", "--run_name ${X}b", "ab"),
        ("export X=a Y=b", "--run_name $X$Y", "ab"),
        ("X=a; X+=b", "--run_name $X", "ab"),
        ("X='say \"a\" \\ b'", '--run_name "$X"', 'say "a" \\ b'),
        ("Y='a b'; X=$Y", '--run_name "$X"', "a b"),
        ("", "--run_name ${UNSET:-fallback}", "fallback"),
        ("", '--run_name "${UNSET:-"two words"}"', "two words"),
        ("X=", "--run_name ${X:-fallback}", "fallback"),
        ("X=b", "--run_name ${UNSET:-a-${X}}", "a-b"),
        ("X=a\nif true; then\n  Y=1\nfi", "--run_name $X", "a"),
        ("f() {\n  echo $1\n}\nX=a", "--run_name $X", "a"),
        ("# X=commented, it's", "--run_name a\\ b", "a b"),
        ("cat <<EOF\nX=in_a_document\nEOF\nX=a", "--run_name $X", "a"),
        ("X='a b'", "--reward_funcs $X", ["a", "b"]),
        ("X=(a 'b c')", '--reward_funcs "${X[@]}"', ["a", "b c"]),
        ("X=(\n  --run_name a  # a comment\n)\nX+=(--seed 1)", '"${X[@]}"', "a"),
        ("X=' --run_name from_a_variable --seed 3'", "$X", "from_a_variable"),
        ("", "--run-name hyphen", "hyphen"),
        ("", "--run_name first --run_name last", "last"),
        ("", "--run_name a > log.txt 2>&1", "a"),
        ("", "--run_name a 2>&1 | tee log.txt", "a"),
    ],
)
def test_words_are_expanded_as_in_a_shell(tmp_path: Path, before: str, argument: str, expected: Any) -> None:
    imported = convert(tmp_path, f"{before}\n{START} \\\n    {argument}\n")
    assert entry_of(imported, "reward_funcs" if "reward_funcs" in argument else "run_name").value == expected


@pytest.mark.parametrize(
    ("before", "argument", "unread"),
    [
        ("", "$(date +%Y --utc)", ""),
        ("", "`date`", ""),
        ("X=$(date)", "a-$X", ""),
        ("", "$X", ""),
        ("", "$1", ""),
        ("X=a", "${X%b}", ""),
        ("", "<NAME-OF-THE-RUN>", ""),
        ("X=a\nif true; then X=b; fi", "$X", "2-2 (if)"),
        ("X=a\nwhile true; do\n  for Y in 1; do X=b; done\ndone", "$X", "2-4 (while)"),
        ("X=a\ncase $Y in\n  a) X=1 ;;\n  *) X=2 ;;\nesac", "$X", "2-5 (case)"),
        ("X=a\nf() {\n  X=b\n}\nf", "$X", "2-4 ({)"),
        ("X=a\n(X=b; echo $X)", "$X", "2-2 (()"),
        ('X=a\n[ -n "$1" ] && X=$1', "$X", "2 (&&)"),
        ("X=a\nread X", "$X", "2 (read)"),
    ],
)
def test_what_only_a_shell_would_know_is_listed(tmp_path: Path, before: str, argument: str, unread: str) -> None:
    imported = convert(tmp_path, f"{before}\n{START} --run_name {argument} --seed 3\n")
    entry = entry_of(imported, "run_name")
    assert (entry.fate, entry.differs) == ("no_counterpart", True)
    assert entry.remark.startswith("only a shell knows ")
    assert imported.config.training.seed == 3
    notes = [note for note in imported.notes if "are not read" in note]
    assert [note.split(":")[0] for note in notes] == ([f"lines {unread} are not read"] if unread else [])


def test_arguments_that_are_not_known_are_an_entry_of_their_own(tmp_path: Path) -> None:
    command = START.replace("train.py", 'train.py "${ARGS[@]}"')
    text = f"ARGS=(--seed 3)\nif true; then ARGS+=(--seed 4); fi\n{command}\n"
    imported = convert(tmp_path, text)
    assert entry_of(imported, "$ARGS").value.text == "$ARGS"
    assert imported.config.training.seed == 42


@pytest.mark.parametrize("inside", ["if true; then\n  {}\nfi", "for X in 1 2; do {}; done", "main() {{\n  {}\n}}", "({})"])
def test_a_training_in_control_flow_is_refused_with_its_lines(tmp_path: Path, inside: str) -> None:
    with pytest.raises(ConfigError, match=r"starts no training that can be read .*lines 1-\d \(.*\) are not read"):
        convert(tmp_path, inside.format(START))


def test_nothing_is_executed(tmp_path: Path) -> None:
    trap = tmp_path / "executed"
    convert(tmp_path, f"X=$(touch {trap})\n`touch {trap}`\ntouch {trap}\n{START} --run_name $(touch {trap})\n")
    assert not trap.exists()


@pytest.mark.parametrize(
    ("argument", "key", "expected"),
    [
        ("--learning_rate 1e-5", "optimizer.lr", 1e-5),
        ("--beta=.04", "loss.beta", 0.04),
        ("--max_steps -1 --seed 3", "training.seed", 3),
        ("--scale_rewards False", "advantage.scale", "none"),
        ("--mask_truncated_completions", "filtering.mask_truncated_completions", True),
        ("--use_vllm true --top_k -1", "rollout.engine", "vllm"),
        (
            "--reward_funcs m.f m.g --reward_weights 1 0.5",
            "rewards",
            [{"fn": "m:f", "weight": 1}, {"fn": "m:g", "weight": 0.5}],
        ),
        ("--save_strategy no", "training.checkpoint_every", None),
    ],
)
def test_text_becomes_values_as_in_its_argument_parser(tmp_path: Path, argument: str, key: str, expected: Any) -> None:
    assert flatten_sections(convert(tmp_path, f"{START} {argument}\n").values)[key] == expected


@pytest.mark.parametrize(
    ("launcher", "prompts"),
    [
        ("python", 2),
        ("python3 -u", 2),
        ("torchrun --nproc_per_node=4", 8),
        ("torchrun --nproc-per-node 4 --nnodes 2", 16),
        ("accelerate launch --num_processes 3 --mixed_precision bf16", 6),
        ("accelerate launch --config_file sub/four.yaml", 8),
        ("deepspeed --num_gpus 2", 4),
        ("uv run torchrun --nproc_per_node 2", 4),
        ("CUDA_VISIBLE_DEVICES=0,1 nohup torchrun --nproc_per_node 2", 4),
        ("N=2; torchrun --nproc_per_node $N", 4),
    ],
)
def test_launchers_tell_the_number_of_processes(tmp_path: Path, launcher: str, prompts: int) -> None:
    (tmp_path / "four.yaml").write_text("num_processes: 4\n")
    imported = convert(tmp_path, START.replace("python", launcher))
    assert imported.config.rollout.num_prompts_per_step == prompts
    assert not any("is assumed" in note for note in imported.notes)


def test_an_unknown_number_of_processes_is_noted_and_can_be_given(tmp_path: Path) -> None:
    text = START.replace("python", "torchrun --nproc_per_node=$(nvidia-smi -L | wc -l)")
    assert any("1 training process is assumed" in note for note in convert(tmp_path, text).notes)
    assert convert(tmp_path, text, processes=8).config.rollout.num_prompts_per_step == 16


def test_trls_own_command_and_a_shell_within_a_shell(tmp_path: Path) -> None:
    arguments = START.removeprefix("python train.py")
    assert convert(tmp_path, f"trl grpo --num_processes 2 {arguments}").config.rollout.num_prompts_per_step == 4
    nested = f'nohup bash -c "torchrun --nproc_per_node 2 train.py {arguments}" > log 2>&1 &'
    assert convert(tmp_path, nested).config.rollout.num_prompts_per_step == 4


def test_two_trainings_are_named_and_one_is_chosen(tmp_path: Path) -> None:
    text = f"echo {START}\n{START} --seed 1\npython evaluate.py --model_name_or_path x\n{START} --seed 2\n"
    with pytest.raises(ConfigError, match=r"2 trainings \(1: line 2 .*; 2: line 4 .*\); choose one with --command"):
        convert(tmp_path, text)
    assert convert(tmp_path, text, command=2).config.training.seed == 2
    with pytest.raises(ConfigError, match="command: 3 is none of the 2 training commands"):
        convert(tmp_path, text, command=3)


def test_the_file_of_config_is_read_beside_the_script_and_arguments_override_it(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "recipe.yaml").write_text("num_generations: 4\nper_device_train_batch_size: 8\nseed: 1\nmax_steps: 5\n")
    imported = convert(folder, "python grpo.py --config recipes/recipe.yaml --seed 2\n")
    assert (imported.config.rollout.group_size, imported.config.training.seed) == (4, 2)
    assert entry_of(imported, "config").value == "recipes/recipe.yaml"
    (tmp_path / "outside.yaml").write_text("seed: 9\n")
    for named in ("../outside.yaml", str(tmp_path / "outside.yaml"), "absent.yaml"):
        with pytest.raises(ConfigError, match=r"takes its settings from .* is not beside the script; put it there"):
            convert(folder, f"python grpo.py --config {named}\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo hello\n", "starts no training that can be read"),
        ("pip install deepspeed trl\npython setup.py install\n", "starts no training"),
        (f"\n{START} --run_name 'open\n", "line 2: No closing quotation"),
        (f'{START} --run_name "open\n', "line 1: No closing quotation"),
        ("(" * 50_000, "starts no training"),
        ("${a:-" * 10_000, "starts no training"),
        ('"$(' * 10_000, "starts no training"),
        ("<<A\n" * 3_000, "starts no training"),
        ("a=1 # " + "x" * MAX_CHARACTERS, f"more than {MAX_CHARACTERS}"),
        ("a=xxxxxxxxxx\n" + "a=$a$a\n" * 5000 + START, "its variables fill in more than 500000 characters"),
        (f"a='{'b ' * 9000}'\n" + "echo $a\n" * 1000 + START, "its variables fill in more than 500000 characters"),
    ],
    ids=range(11),
)
@pytest.mark.timeout(20)
def test_what_is_no_script_or_too_much_of_one_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(tmp_path, text)
    assert str(caught.value).startswith(f"config {tmp_path / 'run.sh'}: ")
    assert reason in str(caught.value)
