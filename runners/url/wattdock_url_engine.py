"""Find out what kind of server answers at an address, and send it the requests of a pass."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from wattdock_proto.asking import Unanswered, ask, key_header, wait_loaded
from wattdock_runner.apis import LlamaCppApi, OpenAiApi, VllmApi
from wattdock_runner.checkpoint import encode_each
from wattdock_runner.engine_server import HttpServer
from wattdock_runner.errors import InvalidRequest, RunnerFault, WorkerDied, WrongState
from wattdock_runner.served import ServedEngine
from wattdock_runner.values import Chat, LoadedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wattdock_runner.checkpoint import EncodedPrompt
    from wattdock_runner.recorder import PassRecorder
    from wattdock_runner.values import LoadOrder, Prompt, Report, Workload

# Where a server's models are listed, by OpenAI's API.
MODELS = "/v1/models"
# Longest wait for a server that loads its model, in seconds; shorter than the coordinator's for a load (1,800).
LOADING_S = 1_200.0
COUNTS = "tokens are as the server counts them: it tells no ids"


class FoundServer(HttpServer):
    """A server that somebody else started, and that stays."""

    def ask(self, path: str, body: Any = None) -> Any:
        """Return the JSON that it answers.

        Raises:
            InvalidRequest: It answers none; says why.
        """
        try:
            return ask(self.url, path, body)
        except Unanswered as error:
            raise InvalidRequest(str(error)) from error

    def told(self, path: str, body: Any = None) -> dict[str, Any]:
        """Return the JSON object that it answers; empty where it has no such page."""
        with suppress(Unanswered):
            return dict(ask(self.url, path, body))
        return {}

    def metrics(self) -> dict[str, float]:
        """Return what its metrics page counts; nothing where it shows none."""
        with suppress(OSError, ValueError):
            return super().metrics()
        return {}

    def fault(self, doing: str, dying_s: float) -> RunnerFault | None:  # noqa: ARG002
        """Return its death, where it no longer answers or its engine has failed."""
        try:
            wait_loaded(self.url)
            self.ask(MODELS)
        except (Unanswered, InvalidRequest) as error:
            return WorkerDied(f"{doing}: the server is gone: {error}")
        return None


class FoundEngine(ServedEngine):
    """Sends requests to a found server, whose tokenizer and chat template make ids of texts."""

    _api: LlamaCppApi | OpenAiApi
    makes_text = True

    def encode(
        self, workload: Workload, prompts: Sequence[Prompt], recorder: PassRecorder
    ) -> tuple[EncodedPrompt, ...]:
        """Return the ids of each prompt by the server, or what stands for them.

        Raises:
            InvalidRequest: The server refuses a prompt, or takes texts only.
        """
        if not self._api.tells_ids and any(not isinstance(prompt.content, (str, Chat)) for prompt in prompts):
            raise InvalidRequest("this server takes texts only, and prompts are token ids; set workload.prompts.source")
        return encode_each(
            workload, prompts, recorder, lambda content, _: self._api.ids_of(self.server, workload, content)
        )


def load_engine(order: LoadOrder, report: Report) -> tuple[ServedEngine, LoadedModel]:
    """Ask the server what it is, and return an engine that asks it in its own way.

    Raises:
        InvalidRequest: It does not answer.
        WrongState: It has not loaded its model in `LOADING_S`, or its engine has failed.
    """
    report("asking the server")
    name, url = str(order.engine_args["model"]), str(order.engine_args["base_url"])
    try:
        wait_loaded(url, within_s=LOADING_S, say=report)
    except Unanswered as error:
        raise WrongState(f"{error}; see its log, and start it again") from error
    server = FoundServer(url, key_header(url))
    entries = [entry for entry in server.ask(MODELS)["data"] if entry.get("id") == name]
    api, framework, version = recognised(server, name)
    engine = FoundEngine(server, api)
    engine.context_tokens = next((entry.get("max_model_len") for entry in entries), None)
    if isinstance(api, LlamaCppApi):
        props = server.ask("/props")
        engine.max_in_flight, engine.in_flight_argument = props["total_slots"], "the server's --parallel"
        engine.context_tokens = props["default_generation_settings"]["n_ctx"]
    limits = {"context_tokens": engine.context_tokens, "max_in_flight": engine.max_in_flight}
    return engine, LoadedModel(
        visible_gpu_uuids=order.gpu_uuids,
        used_gpu_uuids=order.gpu_uuids,
        effective_engine_args={"model": name, **{key: limit for key, limit in limits.items() if limit}},
        parallelism={"kind": "unknown", "devices": {}},
        warnings=() if api.tells_ids else (COUNTS,),
        framework=framework,
        framework_version=version,
    )


def recognised(server: FoundServer, name: str) -> tuple[LlamaCppApi | OpenAiApi, str, str | None]:
    """Return how a server is asked, what it calls itself, and its version.

    vLLM is known by what it does, an answer of one token that tells its id; behind a proxy it need not.

    Source: tools/server/README.md of llama.cpp, GET /props; vLLM's GET /version; `get_server_info` in
    sglang/srt/entrypoints/http_server.py; `return_token_ids` is vLLM's pull request 22587, and SGLang's 30917.
    """
    if build := server.told("/props").get("build_info"):
        return LlamaCppApi(), "llama.cpp", str(build)
    # SGLang may tell ids, too, but its other endpoints are not vLLM's.
    if sglang := server.told("/get_server_info").get("version") or server.told("/server_info").get("version"):
        return OpenAiApi(name), "sglang", str(sglang)
    version = server.told("/version").get("version")
    asked = {"model": name, "prompt": [0], "max_tokens": 1, "temperature": 0.0, "return_token_ids": True}
    choices = server.told("/v1/completions", asked).get("choices") or [{}]
    if choices[0].get("token_ids"):
        return VllmApi(name, lambda work: {"ignore_eos": work.ignore_eos}), "vllm", version
    return OpenAiApi(name), "OpenAI-compatible server", version
