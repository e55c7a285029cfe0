"""A tracking server's databases: their schema, brought up to date by hand, since the server refuses an older one; its users."""


def users_database() -> str:
    """Return the address of the database of users and permissions, from the file that MLFLOW_AUTH_CONFIG_PATH names."""
    from mlflow.server.auth.config import read_auth_config

    return str(read_auth_config().database_uri)


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


def ensure_user(users: str, name: str, password: str) -> None:
    """Let somebody log in who may track: make experiments and models and write into his own, and nothing in anybody else's.

    Args:
        users: address of the database of users and permissions; an empty one gets its tables.
        name: of the user, who is no administrator.
        password: the only one with which he is let in from here on.
    """
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore()
    store.init_db(users)
    if not store.has_user(name):
        store.create_user(name, password)
    else:
        store.update_user(name, password=password, is_admin=False)
