"""A tracking server's databases of an older MLflow, brought up to date by hand."""

from pathlib import Path

from alembic import command
from mlflow.store.db.utils import _get_alembic_config, _get_latest_schema_revision, create_sqlalchemy_engine
from mlflow.store.tracking.dbmodels.initial_models import Base as InitialBase
from sqlalchemy import Engine, text

from tasks.tracking.databases import upgrade_schema

HEAD_OF_3_6 = "bf29a5ff90ea"
"""The newest revision of MLflow 3.6.0's tables."""


def engines(folder: Path) -> tuple[Engine, Engine]:
    return create_sqlalchemy_engine(f"sqlite:///{folder}/store.db"), create_sqlalchemy_engine(f"sqlite:///{folder}/users.db")


def revision(engine: Engine) -> str:
    with engine.connect() as connection:
        return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one())


def test_the_tables_of_3_6_become_those_of_the_version_that_is_installed(tmp_path: Path) -> None:
    store, users = engines(tmp_path)
    InitialBase.metadata.create_all(store)
    command.upgrade(_get_alembic_config(str(store.url)), HEAD_OF_3_6)
    with store.begin() as connection:
        connection.execute(text("INSERT INTO experiments (name, lifecycle_stage) VALUES ('kept', 'active')"))
    upgrade_schema(str(store.url), str(users.url))
    assert revision(store) == _get_latest_schema_revision() != HEAD_OF_3_6
    with store.connect() as connection:
        assert "kept" in connection.execute(text("SELECT name FROM experiments")).scalars().all()
