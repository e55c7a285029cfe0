#!/bin/bash
# On an empty volume: make the cluster and the database, run /docker-entrypoint-initdb.d; then start the server as its user.
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
    chown postgres:postgres "$PGDATA"
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    password=${POSTGRES_PASSWORD:-$(cat "$POSTGRES_PASSWORD_FILE")}
    initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$password") --auth-local=trust --auth-host=scram-sha-256 \
        --encoding=UTF8 --no-locale
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl -w -o "-c listen_addresses=''" start
    if [ "$POSTGRES_DB" != postgres ]; then
        psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d postgres -c "CREATE DATABASE \"$POSTGRES_DB\""
    fi
    for file in /docker-entrypoint-initdb.d/*; do
        case "$file" in
            *.sh) if [ -x "$file" ]; then "$file"; else . "$file"; fi ;;
            *.sql) psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d "$POSTGRES_DB" -f "$file" ;;
        esac
    done
    pg_ctl -m fast -w stop
fi
exec "$@" -c "listen_addresses=*"
