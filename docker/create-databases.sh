#!/bin/bash
# Run once, by PostgreSQL's image on an empty volume: a user and a database each for Prefect, MLflow and Optuna, and nothing for others.
set -euo pipefail
for name in prefect mlflow optuna; do
    psql --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<SQL
\set password \`cat /run/secrets/${name}_database_password\`
CREATE ROLE $name LOGIN PASSWORD :'password';
CREATE DATABASE $name OWNER $name;
REVOKE CONNECT ON DATABASE $name FROM PUBLIC;
SQL
done
psql --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
    --command 'CREATE DATABASE mlflow_auth OWNER mlflow' --command 'REVOKE CONNECT ON DATABASE mlflow_auth FROM PUBLIC'
