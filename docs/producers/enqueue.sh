#!/bin/sh
# Adds one task with redis-cli: REDIS_URL=redis://HOST:PORT enqueue.sh USER
set -eu
user=$1

# -x reads the last argument, the payload, from standard input, byte for byte.
entry=$(printf '{"user": "%s"}' "$user" |
    redis-cli -u "$REDIS_URL" --no-auth-warning -x XADD 'qw:{mail}:tasks' '*' \
        task_id "welcome-$user" kind welcome payload)

# redis-cli ends with 0 even if Redis refused the command.
case $entry in
[0-9]*-[0-9]*) echo "$entry" ;;
*) echo "not enqueued: $entry" >&2 && exit 1 ;;
esac
