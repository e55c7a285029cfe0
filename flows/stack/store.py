"""The artifact store of docker-compose.yml: a client of it, and its one bucket."""

from collections.abc import Mapping
from typing import Any

from grpo_core.errors import StackError

BUCKET = "mlflow"


def objects_client(variables: Mapping[str, str]) -> Any:
    """Return a client of the artifact store.

    Args:
        variables: its address and key, under the names that MLflow and boto3 know (`cluster.store_variables`).
    """
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=variables["MLFLOW_S3_ENDPOINT_URL"],
        aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region_name=variables["AWS_DEFAULT_REGION"],
    )


def ensure_bucket(variables: Mapping[str, str]) -> None:
    """Make the bucket of the artifacts, unless it is there.

    Raises:
        StackError: the store refuses.
    """
    from botocore.exceptions import ClientError

    client = objects_client(variables)
    try:
        client.head_bucket(Bucket=BUCKET)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("404", "NoSuchBucket"):
            raise StackError(f"the artifact store refuses the bucket {BUCKET}: {error}") from error
        client.create_bucket(Bucket=BUCKET)
