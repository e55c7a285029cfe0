"""The schema of a tracking server's databases, brought up to date by hand: the server refuses an older one."""


def upgrade_schema(store: str, users: str) -> None:
    """Bring both databases to the version of the MLflow that is installed; no server may use them meanwhile.

    An empty one stays empty: the server makes its tables when it starts.

    Args:
        store: address of the database of runs, as SQLAlchemy takes it.
        users: address of that of users and permissions.
    """
    from mlflow.store.db.utils import _upgrade_db, create_sqlalchemy_engine
    from sqlalchemy import inspect

    of_runs, of_users = create_sqlalchemy_engine(store), create_sqlalchemy_engine(users)
    if inspect(of_runs).get_table_names():
        _upgrade_db(of_runs)
    if inspect(of_users).get_table_names():
        from mlflow.server.auth.db.utils import migrate

        migrate(of_users, "head")
