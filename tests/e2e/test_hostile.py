"""What strangers wrote, in the hands of a real unprivileged user: nothing runs unasked, and nothing leaks."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from command import SMALL, WATTDOCK, Command
from unprivileged import give_to_user, run_as_user

if TYPE_CHECKING:
    import subprocess

# Names that a list of what looks like a secret would have to know, one by one.
SECRETS = (
    *("HF_TOKEN", "PGPASSWORD", "GITHUB_PAT", "MYSQL_PWD", "SSHPASS", "OPENAI_KEY", "AZURE_STORAGE_KEY", "KUBECONFIG"),
    *("REDIS_URL", "DATABASE_URL", "MONGODB_URI", "AMQP_URL", "SENTRY_DSN", "SLACK_WEBHOOK", "NPM_CONFIG__AUTH"),
    *("AWS_PROFILE", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "GPG_PASSPHRASE", "VAULT_ADDR", "SSH_AUTH_SOCK"),
    *("RESTIC_REPOSITORY", "DOCKER_AUTH_CONFIG", "TWINE_PASSWORD", "UV_PUBLISH_TOKEN", "PIP_INDEX_URL", "HTTPS_PROXY"),
)
VALUE = "value-not-to-be-passed-on"


@pytest.fixture
def planted(wattdock: Command) -> Command:
    """A study whose interpreter writes down what it is told, and then does what it should."""
    python = wattdock.folder / "python"
    python.write_text(f'#!/bin/sh\nenv >> {wattdock.folder}/seen\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    give_to_user(python)
    settings = {"backend": "fake", "model": "shape:tiny-llama", "repeats": {"passes": 1}, "runner_python": str(python)}
    wattdock.write(json.dumps({"experiments": [settings]}))
    return wattdock


def as_written(wattdock: Command, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command without an interpreter of the test's; every secret is in its environment."""
    env = wattdock.env(dict.fromkeys(SECRETS, VALUE) | {"OMP_NUM_THREADS": "1"})
    return run_as_user([WATTDOCK, *words], env=env, cwd=wattdock.folder)


def test_a_plan_executes_nothing_that_the_study_names(planted: Command) -> None:
    """Who looks at a stranger's file before running it is safe until then."""
    done = as_written(planted, "plan", "x.yaml")
    assert done.returncode == 0, done.stderr
    assert not (planted.folder / "seen").exists()


def test_what_a_run_executes_gets_nothing_of_the_callers_secrets(planted: Command) -> None:
    """The runner does not; what an engine needs gets through."""
    done = as_written(planted, "run", "x.yaml", *SMALL[4:])
    assert done.returncode == 0, done.stderr
    seen = (planted.folder / "seen").read_text()
    assert seen.count("OMP_NUM_THREADS=1") == 1, "no trial comes before the runner"
    assert VALUE not in seen
