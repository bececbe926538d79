#!/bin/bash
# day.sh [SETTING...]: judge, fit, score; a refused table does not keep the new rows from being scored with the old one
cd "$(dirname "$0")" || exit 2
PATH=$PWD/.venv/bin:$PATH
failed=0
for job in evaluate fit score; do
    logcal $job --config day.yaml "$@"
    code=$?
    [ $code = 0 ] || [ $code = 99 ] || failed=$code
done
exit $failed
