#!/bin/sh
# Make .venv and install into it what the given file pins (portal or dev), and the project itself.
# Does nothing when that has been done for these very files.
set -eu
cd "$(dirname "$0")/.."
what=$1
stamp=.venv/.installed-$what
sum=$(cat "requirements/$what.txt" pyproject.toml | cksum)
[ -f "$stamp" ] && [ "$(cat "$stamp")" = "$sum" ] && exit 0

good='import sys; sys.exit(sys.version_info < (3, 11))'
python=
for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python; do
  if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c "$good" 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  found=$(python3 --version 2>/dev/null || echo "no python3")
  echo "The portal needs Python 3.11 or later; this machine has $found. Install a newer one, or name it: make PYTHON=/path/to/python3" >&2
  exit 1
fi
if [ -x .venv/bin/python ] && ! .venv/bin/python -c "$good" 2>/dev/null; then
  echo "The virtual environment .venv was made with an older Python. Remove it and try again: make clean" >&2
  exit 1
fi
echo "Setting up .venv with $("$python" --version) (once; about a minute)"
if [ ! -x .venv/bin/python ] && ! "$python" -m venv .venv; then
  rm -rf .venv
  echo "A virtual environment could not be made. Check that this folder can be written to and that Python's venv module is there (on Debian and Ubuntu: apt install python3-venv)." >&2
  exit 1
fi
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "requirements/$what.txt"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
echo "$sum" > "$stamp"
