#!/usr/bin/env bash
# Chromium and its driver from Debian, for the browser test; does nothing where they are present.
set -euo pipefail
if command -v chromium > /dev/null && command -v chromedriver > /dev/null; then
    exit 0
fi
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    as_root=(sudo -n)
fi
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
    chromium chromium-driver fonts-dejavu-core > /dev/null
