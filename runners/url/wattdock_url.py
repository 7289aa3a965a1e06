"""The url backend: a server that runs already, found by its address, is asked as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattdock_runner.arguments import Argument
from wattdock_runner.backend import Backend

if TYPE_CHECKING:
    from collections.abc import Mapping


class UrlBackend(Backend):
    """An OpenAI-compatible server that somebody else started; its version is told with the load."""

    name = "url"
    # The client; the server's framework is known once it has been asked.
    framework = "aiohttp"
    framework_package = "aiohttp"
    engine_module = "wattdock_url_engine"
    packages: tuple[str, ...] = ("aiohttp",)
    engine_arguments: Mapping[str, Argument] | None = {"base_url": Argument((str,)), "model": Argument((str,))}
    needs_folder = False
