#!/usr/bin/env bash
# Find the Java that runs Spark, or install the distribution's package if permitted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Use the product's own search, so that the same Java is used later. Prints the cause and the next
# step if there is none.
find_java() {
    .venv/bin/python - <<'PYTHON'
import sys

from thermocline.engine import java
from thermocline.errors import EngineUnavailable

try:
    java.find_java()
except EngineUnavailable as error:
    sys.exit(str(error))
PYTHON
}

find_java 2>/dev/null && exit

if [ "$(id -u)" = 0 ]; then
    root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    root=(sudo -n)
else
    find_java
    exit 1
fi
command -v apt-get >/dev/null || { find_java; exit 1; }

"${root[@]}" apt-get update -qq
# 17 is in Debian 11 and 12 and in Ubuntu, 21 in Ubuntu and Debian 13.
for version in 17 21; do
    package="openjdk-$version-jre-headless"
    if [ -n "$(apt-cache search --names-only "^$package\$")" ]; then
        echo "==> Installing $package, which Spark runs on"
        "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$package" >/dev/null
        break
    fi
done
find_java
