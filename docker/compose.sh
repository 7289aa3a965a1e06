#!/bin/sh
# compose.sh run [wattdock run's arguments] | up | down | config: wattdock on a shared server, as the caller.
#
# Writes docker/.env (who calls, the engine's socket and its group, the shared folder), which compose reads: shells do
# not tell it who they are. Takes compose v2 where it is there, else 1.29.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
home=${WATTDOCK_HOME:-/srv/wattdock}
engine=${DOCKER_HOST:-unix:///var/run/docker.sock}
socket=${engine#unix://}

refuse() {
  echo "wattdock: $1" >&2
  exit 3
}

[ "$engine" != "$socket" ] || refuse "the engine at $engine is no Unix socket; set DOCKER_HOST to unix://..."
[ -S "$socket" ] || refuse "no engine's socket at $socket; start an engine, or name its socket with DOCKER_HOST"
[ -d "$home" ] || refuse "$home is not there; as root: install -d -m 1777 $home, or name a folder with WATTDOCK_HOME"
case $home in /*) ;; *) refuse "WATTDOCK_HOME is $home; it must be a path from /" ;; esac

uid=$(id -u) gid=$(id -g) group=$(stat -c %g "$socket")
# There the caller is root inside, and nobody else exists.
if docker info --format '{{.SecurityOptions}}' 2>/dev/null | grep -q name=rootless; then uid=0 gid=0 group=0; fi

own=$home/users/$uid
# The longest path of a runner's socket; the kernel's own limit is 107.
longest=$own/run/wattdock/00000000/r.sock
[ ${#longest} -le 100 ] || refuse "$home is too long for sockets' paths; name a shorter folder with WATTDOCK_HOME"
mkdir -p -m 1777 "$home/users" "$home/leases" || refuse "cannot make folders in $home; as root: chmod 1777 $home"
mkdir -p -m 700 "$own" "$own/run" "$own/tmp" || refuse "$own belongs to somebody else"
cp "$here/images.lock" "$own/images.lock"
cat >"$here/.env" <<ENV
COMPOSE_PROJECT_NAME=wattdock-$uid
UID=$uid
GID=$gid
DOCKER_GID=$group
DOCKER_SOCKET=$socket
WATTDOCK_HOME=$home
ENV

if docker compose version >/dev/null 2>&1; then compose() { docker compose "$@"; }; else
  command -v docker-compose >/dev/null || refuse "neither docker compose nor docker-compose is here; install one"
  compose() { docker-compose "$@"; }
fi
files="-f $here/compose.yaml"
# The driver's device file; on WSL there is another.
if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then files="$files -f $here/compose.gpu.yaml"; fi

action=${1:-help}
[ $# = 0 ] || shift
cd "$here"
case $action in
  run)
    # Without a terminal, compose must not ask for one.
    terminal=
    [ -t 0 ] && [ -t 1 ] || terminal=-T
    echo "wattdock: results go to $own/results" >&2
    compose $files run --rm $terminal coordinator run --launcher docker "$@"
    ;;
  up) compose $files up --detach ;;
  down) compose $files down --remove-orphans ;;
  config) compose $files config ;;
  *) refuse "compose.sh $action: write run, up, down or config" ;;
esac
