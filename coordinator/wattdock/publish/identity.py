"""Who and where we are: the names and secrets that this process could have left in a result."""

from __future__ import annotations

import os
import platform
import pwd
import re
from pathlib import Path

from wattdock.publish.redaction import Private

SECRET_VARIABLE = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)
USER_VARIABLES = ("USER", "LOGNAME", "SUDO_USER")
HOST_VARIABLES = ("HOSTNAME", "HOST", "SLURMD_NODENAME")
HUB_TOKEN = Path("~/.cache/huggingface/token")
# Shorter ones are no secrets, and stand in every text.
SECRET_CHARACTERS = 6


def own_names() -> set[Private]:
    """Return this user's names and home folders, this machine's names, and the values of secret variables."""
    users, homes = {os.environ.get(name, "") for name in USER_VARIABLES}, {os.environ.get("HOME", "")}
    try:
        account = pwd.getpwuid(os.geteuid())
        users |= {account.pw_name, account.pw_gecos.split(",")[0]}
        homes.add(account.pw_dir)
    except KeyError:
        # A user without an account has no name.
        pass
    hosts = {platform.node(), *(os.environ.get(name, "") for name in HOST_VARIABLES)}
    hosts |= {name.partition(".")[0] for name in hosts}
    found = {Private("user", name) for name in users} | {Private("host", name) for name in hosts}
    found |= {Private("home", home) for home in homes if home.count("/") and home != "/"}
    return {one for one in found if one.text} | _secrets()


def _secrets() -> set[Private]:
    values = {value for name, value in os.environ.items() if SECRET_VARIABLE.search(name)}
    token = HUB_TOKEN.expanduser()
    if token.is_file() and os.access(token, os.R_OK):
        values.add(token.read_text(errors="replace").strip())
    return {Private("secret", value) for value in values if len(value) >= SECRET_CHARACTERS}
