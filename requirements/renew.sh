#!/bin/sh
# Pin every version with its hashes, for Linux and macOS, x86_64 and arm64, Python 3.11 and later.
# The files hold no registry address. PACKAGE=name renews one package only.
set -eu
cd "$(dirname "$0")/.."
one=${PACKAGE:+--upgrade-package "$PACKAGE"}
compile() {
  out=$1
  shift
  # shellcheck disable=SC2086
  .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
    --no-emit-find-links --no-header --no-annotate ${one:---upgrade} "$@" pyproject.toml requirements/build.in -o "requirements/$out.txt"
}
compile dev --all-extras
compile portal --extra hub --extra notebook --constraint requirements/dev.txt
