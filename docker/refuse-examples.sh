#!/bin/sh
# The start of an image that is not ours: refuse secrets of an example and short ones, then become the command of the arguments.
# The rule is that of flows/stack/cluster.py. Whoever runs the file need not wait for the service `check`: podman-compose does not.
set -eu
for file in "${GRPO_SECRETS:-/run/secrets}"/*; do
    secret=$(tr '[:upper:]' '[:lower:]' < "$file")
    case $secret in
        *change-me* | *changeme* | *example* | *password* | *secret*) problem="is an example's" ;;
        *) problem="has ${#secret} characters; at least 16 are needed" && [ ${#secret} -ge 16 ] && continue ;;
    esac
    echo "error: $file: $problem; remove it and run \`python3 docker/make_secrets.py\` on the host" >&2
    exit 1
done
exec "$@"
