#!/bin/sh
# Prints the path of the first Python that can make the virtual environment, or says what to do.
# $PYTHON, when set, is the only candidate.
set -eu

probe='import sys, venv, ensurepip; print(sys.executable); sys.exit(sys.version_info < (3, 11))'
candidates=${PYTHON:-python3.13 python3.12 python3.11 python3}
for candidate in $candidates; do
    if found=$("$candidate" -c "$probe" 2>/dev/null); then
        echo "$found"
        exit 0
    fi
done

cat >&2 <<EOF
txnlog needs Python 3.11 or newer, with its venv module. Tried: $candidates
  Debian, Ubuntu:  sudo apt install python3 python3-venv
  macOS:           brew install python@3.13
A Python elsewhere can be named:  make PYTHON=/path/to/python3 test
EOF
exit 1
