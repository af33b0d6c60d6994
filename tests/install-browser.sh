#!/bin/sh
# The browser tests need Chromium. Take what is there, install it where that is possible, say what is missing.
set -eu
for name in chromium chromium-browser google-chrome-stable google-chrome; do
  command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "Installing Chromium for the browser tests"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium; } >/dev/null 2>&1 && exit 0
fi
if [ -d "${PLAYWRIGHT_BROWSERS_PATH:-$HOME/.cache/ms-playwright}" ]; then exit 0; fi
.venv/bin/playwright install chromium >/dev/null 2>&1 && exit 0
echo "No Chromium was found and none could be installed: the browser tests will be skipped. Install Chromium or Chrome to run them." >&2
