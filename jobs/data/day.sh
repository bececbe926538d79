#!/bin/bash
# day.sh [SETTING...]: evaluate, monitor, fit, score. 99, nothing to do, is no failure; a table that is refused does not
# keep the new rows from being scored with the one before; 75: another day is running.
cd "$(dirname "$0")" || exit 2
PATH=$PWD/.venv/bin:$PATH
lock=/data/store/.day.lock
mkdir -p "${lock%/*}" && exec 9> "$lock" || exit 2
if command -v flock > /dev/null && ! flock -n 9; then
    echo "day.sh: another day is running" >&2
    exit 75
fi
failed=0
for job in evaluate monitor fit score; do
    logcal $job --config day.yaml "$@"
    code=$?
    [ $code = 0 ] || [ $code = 99 ] || failed=$code
done
exit $failed
