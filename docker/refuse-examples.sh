#!/bin/sh
# The start of every image: refuse secrets that are an example's, too short or odd, then become the command of the arguments.
# An engine may start a container although `check` has failed: podman-compose does.
set -eu
folder=${GRPO_SECRETS:-/run/secrets} found=""
refuse() {
    echo "error: $1; remove it and run \`python3 docker/make_secrets.py\` on the host" >&2
    exit 1
}
for file in "$folder"/*; do
    [ -f "$file" ] || continue # an engine may have folders of its own there
    found=yes
    odd=$(LC_ALL=C tr -d 'A-Za-z0-9._~\n-' < "$file")
    secret=$(LC_ALL=C tr '[:upper:]' '[:lower:]' < "$file")
    case $secret in
        *change-me* | *changeme* | *example* | *password* | *secret*) refuse "$file: is an example's" ;;
    esac
    if [ -n "$odd" ] || [ ${#secret} -lt 16 ]; then
        refuse "$file: at least 16 letters, digits and . _ ~ - of ASCII are needed"
    fi
done
[ -n "$found" ] || refuse "$folder: no secret"
exec "$@"
