#!/bin/sh
# Succeeds when the Java that Spark would start (JAVA_HOME's, else the one on PATH) is 17 or newer.
set -eu

if [ -n "${JAVA_HOME:-}" ]; then java="$JAVA_HOME/bin/java"; else java=java; fi
# The line looks like: openjdk version "17.0.15" 2025-04-15, and before Java 9 like: "1.8.0_392".
version=$("$java" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1) || version=
major=$(echo "${version#1.}" | sed 's/[^0-9].*//')

if [ "${major:-0}" -ge 17 ]; then exit 0; fi
cat >&2 <<EOF
Spark needs Java 17 or newer; $java is ${version:-not there}.
  Debian, Ubuntu:  sudo apt install openjdk-17-jre-headless
  macOS:           brew install openjdk@17 && export JAVA_HOME="\$(brew --prefix openjdk@17)"
A Java elsewhere is found through JAVA_HOME.
EOF
exit 1
