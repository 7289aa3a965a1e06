#!/bin/sh
# compose.sh run [wattdock run's arguments] | up | down | config: wattdock on a shared server, as the caller.
#
# Writes docker/.env (who calls, the engine's socket and its group, the shared folder), for whoever calls compose by hand:
# shells do not tell it who they are. Takes compose v2 where it is there, else 1.29.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
home=${WATTDOCK_HOME:-/srv/wattdock}
engine=${DOCKER_HOST:-unix:///var/run/docker.sock}
socket=${engine#unix://}

refuse() {
  printf "wattdock: %s\n" "$(printf %s "$1" | tr "\n" " ")" >&2
  exit 3
}

[ "$engine" != "$socket" ] || refuse "the engine at $engine is no Unix socket; set DOCKER_HOST to unix://..."
[ -S "$socket" ] || refuse "no engine's socket at $socket; start a container engine, or name its socket with DOCKER_HOST"
# compose would cut or change such a path.
case $home$socket in
  *[:\$\#\"\'\\\`]* | *[[:space:]]*)
    refuse "WATTDOCK_HOME is $home, the socket $socket; neither may hold blanks, quotes or any of : # \$ \\" ;;
esac
make_them="install -d -m 1777 $home/users $home/leases"
[ -d "$home" ] || refuse "$home is not there; as root: $make_them (or name another folder with WATTDOCK_HOME)"
case $home in /*) ;; *) refuse "WATTDOCK_HOME is $home; it must be a path from /" ;; esac

me=$(id -u)
uid=$me gid=$(id -g) group=$(stat -c %g "$socket")
# There the caller is root inside, and nobody else exists; outside, there are other users with engines of their own.
if docker info --format '{{.SecurityOptions}}' 2>/dev/null | grep -q name=rootless; then uid=0 gid=0 group=0; fi

own=$home/users/$me
# The longest path of a runner's socket; the kernel's own limit is 107.
longest=$own/run/wattdock-00000000/r.sock
[ ${#longest} -le 100 ] || refuse "$home is too long for sockets' paths; name a shorter folder with WATTDOCK_HOME"
for shared in "$home/users" "$home/leases"; do
  # A link is judged itself: the kernel may forbid to look through it.
  [ ! -L "$shared" ] || case $(stat -c %u "$shared") in 0 | "$me") ;; *) refuse "$shared belongs to somebody else; its owner or root can remove it" ;; esac
  [ -d "$shared" ] || { [ -O "$home" ] && mkdir -m 1777 "$shared"; } || refuse "$shared is not there; as root: $make_them"
  # Its owner could put away what others have in it.
  case $(stat -c %u "$shared") in 0 | "$me") ;; *) refuse "$shared belongs to somebody else; its owner or root can remove it" ;; esac
  [ -w "$shared" ] && [ -x "$shared" ] || refuse "cannot write in $shared; as root: $make_them"
  # Without the sticky bit anybody could put another's folder, or a lease that is held, out of the way.
  [ -k "$shared" ] || refuse "$shared lets users remove each other's files; as root: $make_them"
done
# Anybody can make a folder of that name before its owner does, and change what is kept in it.
mkdir -p -m 700 "$own" && [ -O "$own" ] && [ ! -L "$own" ] ||
  refuse "$own belongs to somebody else; its owner or root can remove it"
chmod 700 "$own"
mkdir -p -m 700 "$own/run" "$own/tmp"
# Whole at once: another run of this user may be reading it.
cp "$here/images.lock" "$own/.images.lock.$$" && mv "$own/.images.lock.$$" "$own/images.lock"

settings="COMPOSE_PROJECT_NAME=wattdock-$me
WATTDOCK_USER=$me
UID=$uid
GID=$gid
DOCKER_GID=$group
DOCKER_SOCKET=$socket
WATTDOCK_HOME=$home"
# Several users may share one checkout, which need not be theirs to write in.
if [ -w "$here" ]; then
  umask 022
  echo "$settings" >"$here/.env.$$" && mv "$here/.env.$$" "$here/.env"
fi

# compose prefers its environment to docker/.env: what callers happen to export (UID, GID), or another user of this
# checkout has just written, must not decide as whom a run is.
as_caller() { env -u DOCKER_CONTEXT -u COMPOSE_PROFILES DOCKER_HOST="$engine" $settings "$@"; }

if docker compose version >/dev/null 2>&1; then compose() { as_caller docker compose "$@"; }; else
  command -v docker-compose >/dev/null || refuse "neither docker compose nor docker-compose is here; install one"
  compose() { as_caller docker-compose "$@"; }
fi
files="-f compose.yaml"
# The driver's device file; on WSL there is another.
if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then files="$files -f compose.gpu.yaml"; fi

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
