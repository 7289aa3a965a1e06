"""The model of a server that runs already: its name there, and what the server tells of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from wattdock.config import ModelSpec
from wattdock.errors import Cause, ConfigError, PreflightError
from wattdock.host import processes
from wattdock.inputs.locate import locate
from wattdock.inputs.model_folder import check_folder
from wattdock.text import listed
from wattdock_proto.asking import ANSWER_S, Unanswered, ask

if TYPE_CHECKING:
    from wattdock.config import ExperimentConfig

MODELS = "/v1/models"


@dataclass(frozen=True)
class ServedModel:
    """A model as a server lists it.

    Attributes:
        name: The name in requests.
        root: What the server was started with, where it tells: an id on a hub or a folder.
        vocab_size: Number of token ids; None where the server does not tell.
    """

    name: str
    root: str = ""
    vocab_size: int | None = None

    @property
    def names(self) -> set[str]:
        """Names by which a person may mean it."""
        return {form for name in (self.name, self.root) if name for form in (name, name.rpartition("/")[2])}

    def path(self, url: str) -> Path | None:
        """Return the model's whole folder or GGUF file on this machine; None where this user finds none.

        The server has loaded its model already: no folder is too incomplete, closed or unusual to measure the server.
        """
        if not processes.is_here(urlsplit(url).hostname or ""):
            return None
        for path in (Path(text) for text in (self.root, self.name) if text.startswith("/")):
            with suppress(ConfigError, PreflightError):
                place = locate(path)
                check_folder(place.folder, gguf=place.gguf)
                return path
        return None


@dataclass(frozen=True)
class ServedModels:
    """The models that a server lists.

    Attributes:
        url: Its address.
    """

    url: str
    models: tuple[ServedModel, ...]

    @classmethod
    def at(cls, url: str, *, wait_s: float = ANSWER_S) -> ServedModels:
        """Ask a server for its models.

        Args:
            wait_s: Longest silence.

        Raises:
            PreflightError: The server does not answer, or lists no models.

        Source: OpenAI's API reference, "List models"; vLLM adds `root`, llama.cpp `meta.n_vocab`.
        """
        try:
            answer = ask(url, MODELS, wait_s=wait_s)
            models = tuple(
                ServedModel(str(entry["id"]), str(entry.get("root") or ""), (entry.get("meta") or {}).get("n_vocab"))
                for entry in answer["data"]
            )
        except Unanswered as error:
            raise PreflightError(str(error)) from error
        except (LookupError, TypeError, AttributeError) as error:
            what = f"{url} answers {MODELS} with {str(answer)[:100]}"
            raise PreflightError(what, "it is no OpenAI-compatible server; correct the address") from error
        return cls(url, models)

    def meant_by(self, config: ExperimentConfig) -> ServedModel:
        """Return the model that an experiment means.

        Raises:
            ConfigError: There is another model than the experiment names, be it under that name, or several and none is
                named.
        """
        asked, label = getattr(config.section, "model", None), config.model.label
        if asked:
            meant = [model for model in self.models if model.name == asked]
        elif config.model.id == ModelSpec.SERVED:
            meant = list(self.models)
        else:
            meant = [model for model in self.models if model.names & {label, label.rpartition("/")[2]}]
        if len(meant) == 1:
            root = meant[0].root
            # OWNER/NAME; a path on the server's machine tells no id.
            is_id = root.count("/") == 1 and root[0] not in "/.~"
            if config.model.on_hub and is_id and not f"/{root}".lower().endswith(f"/{label}".lower()):
                has = f"{self.url} serves {root} as {meant[0].name}, not {label}"
                raise ConfigError(has, f"give --model {root}, or leave --model out", cause=Cause.INVALID_VALUE)
            return meant[0]
        has = listed([model.name for model in self.models]) or "no model"
        if meant:
            raise ConfigError(f"{self.url} has {has}", "name one: url.model", cause=Cause.INVALID_VALUE)
        remedy = "leave --model out, or give the name there: --set url.model=NAME"
        raise ConfigError(f"{self.url} has {has}, not {asked or label}", remedy, cause=Cause.INVALID_VALUE)
