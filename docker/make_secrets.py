"""Make the secrets of docker-compose.yml, each a file of `secrets/`: `python3 docker/make_secrets.py [FOLDER]`.

One that is there stays. Containers read the files as users of their own, so the files are readable and the folder is not: it is
its owner's alone.
"""

import secrets
import sys
from pathlib import Path

NAMES = (
    "postgres_password",
    "prefect_database_password",
    "mlflow_database_password",
    "optuna_database_password",
    "redis_password",
    "s3_secret_key",
    "prefect_auth_string",
    "mlflow_password",
    "mlflow_worker_password",
    "mlflow_session_key",
    "vllm_key",
)


def main(folder: Path) -> None:
    """Make those that are missing."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
    for name in NAMES:
        file = folder / name
        if not file.exists():
            file.write_text(secrets.token_urlsafe(32) + "\n")
            file.chmod(0o444)
            print(f"made {file}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "secrets")
