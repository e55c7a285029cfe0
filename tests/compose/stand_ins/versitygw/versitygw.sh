#!/bin/sh
# versitygw --port :7070 --health /health posix FOLDER
folder=
for word in "$@"; do folder=$word; done
export NANIO_ACCESS_KEY="$ROOT_ACCESS_KEY" NANIO_SECRET_KEY="$ROOT_SECRET_KEY"
exec /opt/venv/bin/nanio serve --data-dir "$folder" --host 0.0.0.0 --port 7070
