#!/bin/bash
# day.sh [OPTION...]: evaluate, monitor, fit, score, each with these options. In crontab: 30 6 * * * /path/to/day.sh
# Exit code 99 (nothing to do) is no failure; 75: another run is under way. If the new table is refused, the new rows are
# scored with the live one.
cd "$(dirname "$0")" || exit 2
PATH=$PWD/.venv/bin:$PATH
lock=/data/store/.day.lock
mkdir -p "${lock%/*}" && exec 9> "$lock" || exit 2
if command -v flock > /dev/null && ! flock -n 9; then
    echo "day.sh: another run is under way" >&2
    exit 75
fi
failed=0
for job in evaluate monitor fit score; do
    logcal $job --config day.yaml "$@"
    code=$?
    [ $code = 0 ] || [ $code = 99 ] || failed=$code
done
exit $failed
