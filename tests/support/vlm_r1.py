"""A launch of VLM-R1 in a folder: `run_grpo_rec.sh` as it is published, ten rows of its data in two files, their images."""

import json
from pathlib import Path
from typing import Any

from PIL import Image

SCRIPT = """#!/bin/bash
PROJECT_ROOT="$( cd "$( dirname "${{BASH_SOURCE[0]}}" )/.." && pwd )"
export REPO_HOME="${{PROJECT_ROOT}}"
echo "REPO_HOME: $REPO_HOME"
# Change the data_paths and image_folders to your own data
data_paths="{folder}/rec/refcoco_train.jsonl:{folder}/rec/refcocop_train.jsonl"
image_folders="{folder}/coco:{folder}/coco/more"
model_path="{model}"
is_reward_customized_from_vlm_module=True
export EXP_NAME="Qwen2.5-VL-3B-Instruct-rec"
TASK_TYPE="rec"
cd ${{REPO_HOME}}/src/open-r1-multimodal
export DEBUG_MODE="true"
mkdir -p ${{REPO_HOME}}/runs/${{EXP_NAME}}/log
export LOG_PATH="${{REPO_HOME}}/runs/${{EXP_NAME}}/log/debug_log.$(date +%Y-%m-%d-%H-%M-%S).txt"
torchrun --nproc_per_node="{processes}" \\
    --nnodes="1" --node_rank="0" --master_addr="127.0.0.1" --master_port="12349" \\
  src/open_r1/grpo_jsonl.py \\
    --use_vllm False \\
    --output_dir ${{REPO_HOME}}/checkpoints/rl/${{EXP_NAME}} \\
    --resume_from_checkpoint True \\
    --model_name_or_path $model_path \\
    --data_file_paths $data_paths \\
    --image_folders $image_folders \\
    --is_reward_customized_from_vlm_module $is_reward_customized_from_vlm_module \\
    --task_type $TASK_TYPE \\
    --per_device_train_batch_size 8 \\
    --gradient_accumulation_steps 2 \\
    --gradient_checkpointing true \\
    --logging_steps 1 \\
    --num_train_epochs 2 \\
    --bf16 \\
    --attn_implementation flash_attention_2 \\
    --run_name ${{EXP_NAME}} \\
    --data_seed 42 \\
    --save_steps 100 \\
    --num_generations 8 \\
    --max_completion_length 2048 \\
    --reward_funcs accuracy format \\
    --beta 0.04 \\
    --report_to wandb \\
    --dataset-name this_is_not_used \\
    --deepspeed ${{REPO_HOME}}/src/open-r1-multimodal/local_scripts/zero3.json {more}
"""
ASKED = "Please provide the bounding box coordinate of the region this sentence describes: the square."


def rows(first: int) -> list[dict[str, Any]]:
    """Return five rows in the published form: the answer a box or text, with tags or without; an image's path or a list."""
    answers: list[Any] = [
        [4, 8, 20, 24],
        "<answer> [0, 0, 8, 8] </answer>",
        "[2, 2, 30, 30]",
        [1, 1, 9, 17],
        "<answer>[5,6,7,8]</answer>",
    ]
    return [
        {
            "id": first + index,
            "image": f"image_{first + index}.png" if index % 2 == 0 else [f"image_{first + index}.png"],
            "conversations": [{"from": "human", "value": f"<image>{ASKED}"}, {"from": "gpt", "value": answer}],
        }
        for index, answer in enumerate(answers)
    ]


def write_launch(folder: Path, model: str = "Qwen/Qwen2.5-VL-3B-Instruct", processes: int = 8, more: str = "") -> Path:
    """Write the script, the data and the images below a folder; return the script.

    Args:
        folder: the folder, absolute.
        model: of the launch.
        processes: that it starts.
        more: further arguments.
    """
    for name, images, first in (("refcoco_train", "coco", 0), ("refcocop_train", "coco/more", 5)):
        file = folder / "rec" / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows(first)))
        (folder / images).mkdir(exist_ok=True)
        for number in range(first, first + 5):
            Image.new("RGB", (56 + 28 * (number % 3), 56), (20 * number, 80, 200)).save(folder / images / f"image_{number}.png")
    script = folder / "run_grpo_rec.sh"
    script.write_text(SCRIPT.format(folder=folder, model=model, processes=processes, more=more))
    return script
