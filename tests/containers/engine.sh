#!/usr/bin/env bash
# engine.sh start|stop FOLDER [plain]: a private Docker engine for tests, with its data and its socket in FOLDER.
#
# Needs root and Debian's docker.io. Its socket belongs to the group of tests/unprivileged.py's user, as it would to the
# docker group. Unless "plain", a stand-in for NVIDIA's runtime hook lies on its PATH and notes in FOLDER/hook what it was
# given. It has no network, touches none of the machine's, and reaches registries without TLS at any address.
set -euo pipefail
action=${1:?start or stop} folder=${2:?folder} kind=${3:-}
group=1500

start() {
  mkdir -p "$folder/bin" "$folder/hook"
  chmod 755 "$folder"
  cat >"$folder/bin/nvidia-container-runtime-hook" <<HOOK
#!/bin/sh
# The engine's runtime hands over the container's state; beside it lies the container's whole description.
state=\$(cat)
bundle=\$(printf %s "\$state" | sed -n 's/.*"bundle":"\([^"]*\)".*/\1/p')
cp "\$bundle/config.json" "$folder/hook/config.json"
chmod 644 "$folder/hook/config.json"
HOOK
  chmod 755 "$folder/bin/nvidia-container-runtime-hook"
  if [ "$kind" != plain ]; then PATH=$folder/bin:$PATH; fi
  # Its containers compute; what is simulated in real time beside them goes before.
  setsid nice -n 10 dockerd \
    --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" \
    -H "unix://$folder/docker.sock" --group "$group" --storage-driver overlay2 --bridge none --iptables=false \
    --insecure-registry 0.0.0.0/0 \
    >"$folder/log" 2>&1 </dev/null &
  pid=$!
  for _ in $(seq 600); do
    if DOCKER_HOST=unix://$folder/docker.sock docker version >/dev/null 2>&1; then
      echo "unix://$folder/docker.sock"
      return
    fi
    kill -0 "$pid" 2>/dev/null || { tail -15 "$folder/log" >&2; exit 1; }
    sleep 0.1
  done
  kill "$pid"
  echo "dockerd did not answer within 60 s: $folder/log" >&2
  exit 1
}

stop() {
  pid=$(cat "$folder/pid" 2>/dev/null) || return 0
  export DOCKER_HOST=unix://$folder/docker.sock
  docker ps -aq | xargs -r docker rm -f >/dev/null
  kill "$pid"
  for _ in $(seq 150); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  # A network namespace stays mounted after dockerd has ended.
  awk -v below="$folder/" 'index($2, below) == 1 {print $2}' /proc/mounts | xargs -r -n 1 umount
}

"$action"
