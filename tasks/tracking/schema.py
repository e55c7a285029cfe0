"""The schema of a tracking server's databases, brought up to date by hand: the server refuses an older one."""


def upgrade_schema(store: str, users: str) -> None:
    """Bring both databases to the version of the MLflow that is installed; no server may use them meanwhile.

    Args:
        store: address of the database of runs, as SQLAlchemy takes it.
        users: address of that of users and permissions.
    """
    from mlflow.server.auth.db.utils import migrate
    from mlflow.store.db.utils import _upgrade_db, create_sqlalchemy_engine

    _upgrade_db(create_sqlalchemy_engine(store))
    migrate(create_sqlalchemy_engine(users), "head")
