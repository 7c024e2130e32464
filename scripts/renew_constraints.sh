#!/bin/sh
# Writes constraints.txt: the newest versions of all dependencies that pyproject.toml allows, as pip
# finds them for the oldest Python that is supported. Later ones can use the same: pip ignores a
# constraint on what it does not install. $PYTHON, when set, must be that Python.
set -eu

oldest=3.11
python=${PYTHON:-python$oldest}
if ! "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$oldest')"; then
    echo "constraints.txt is written with Python $oldest, the oldest one that is supported: name it," >&2
    echo "  make PYTHON=/path/to/python$oldest constraints" >&2
    exit 1
fi
home=build/constraints
trap 'rm -rf "$home"' EXIT
"$python" -m venv --clear "$home"
pip="$home/bin/python -m pip --disable-pip-version-check"
$pip install --quiet --upgrade pip
$pip install --quiet --no-compile '.[dev]'
{
    sed '/^[^#]/,$d' constraints.txt
    $pip freeze --all --exclude txnlog | LC_ALL=C sort -f
} >"$home/constraints.txt"
mv "$home/constraints.txt" constraints.txt
