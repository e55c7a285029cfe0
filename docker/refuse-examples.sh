#!/bin/sh
# The start of an image without this project's Python: refuse secrets that are an example's, too short or odd, as flows/stack/cluster.py
# does, then become the command of the arguments. An engine may start a container although `check` has failed: podman-compose does.
set -eu
folder=${GRPO_SECRETS:-/run/secrets} found=""
refuse() {
    echo "error: $1; remove it and run \`python3 docker/make_secrets.py\` on the host" >&2
    exit 1
}
for file in "$folder"/*; do
    [ -f "$file" ] || continue # an engine may have folders of its own there
    found=yes
    odd=$(LC_ALL=C tr -d '!-~\n' < "$file")
    secret=$(LC_ALL=C tr '[:upper:]' '[:lower:]' < "$file")
    case $secret in
        *change-me* | *changeme* | *example* | *password* | *secret*) refuse "$file: is an example's" ;;
    esac
    if [ -n "$odd" ] || [ ${#secret} -lt 16 ]; then
        refuse "$file: ${#secret} characters; at least 16 printable ones of ASCII, without a space, are needed"
    fi
done
[ -n "$found" ] || refuse "$folder: no secret"
exec "$@"
