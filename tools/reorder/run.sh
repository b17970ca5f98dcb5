#!/usr/bin/env bash
# run.sh [--root DIRECTORY] [STAGES]: change a clean checkout in one commit per package and stage, then check the result.
# Default: the checkout that holds this script, stages ABC. The exit status is 0 only if every step is clean.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
if [ "${1:-}" = --root ]; then root=$2; shift 2; fi
stages=${1:-ABC}
cd "$root" || exit 1
before=$(git rev-parse HEAD)
failed=0
step() { echo "== $1"; shift; "$@" || failed=1; }
step "stages $stages" .venv/bin/python "$here/reorder.py" --root . --stages "$stages" --commit
step "ruff" .venv/bin/ruff check . --output-format concise
step "ruff format" .venv/bin/ruff format --check -q .
step "mypy" .venv/bin/mypy
step "lint-imports" .venv/bin/lint-imports --no-cache
step "every module can be imported first" .venv/bin/python "$here/imports.py"
step "tests" .venv/bin/pytest -q -n 2 tests/architecture tests/core tests/docs tests/test_config.py
echo "To undo: git reset --hard $before"
exit $failed
