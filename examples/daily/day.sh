#!/bin/bash
# day.sh [SETTING...]: evaluate, monitor, fit, score. Exit code 99 (nothing to do) is no failure. If the new table is
# refused, the new rows are scored with the live one. 75: another day is running.
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
