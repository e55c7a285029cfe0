#!/bin/bash
CONFIG_PATH=$(basename $(dirname $0))
python examples/start_agentic_pipeline.py --config_path $CONFIG_PATH --config_name agentic_val_frozen_lake
