#!/bin/bash
# day.sh: judge, fit, score; a refused table does not keep the new rows from being scored with the old one
cd /opt/logcal || exit 2
run() { .venv/bin/logcal "$1" --config day.yaml; code=$?; [ $code = 99 ] && code=0; return $code; }
failed=0
run evaluate || failed=$?
run fit || failed=$?
run score || failed=$?
exit $failed
