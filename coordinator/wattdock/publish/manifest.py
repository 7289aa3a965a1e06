"""What a bundle says of itself, and the list of its files' hashes. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from wattdock.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wattdock.analysis import ExperimentResult

BUNDLE_SCHEMA: Final = 1
MANIFEST, SUMS, README, CITATION = "bundle.json", "SHA256SUMS", "README.md", "CITATION.cff"
STUDY, LOCK, RESULTS, PROMPTS, CARDS = "study.yaml", "images.lock", "results", "prompts", "meter-cards"
SHOWN = 3
# Neither hidden nor a way out, on any system that a reader may have; the names of our own files are all of this kind.
SAFE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
SUM_LINE = re.compile(r"([0-9a-f]{64})  (.+)")


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Code(_Stored):
    """Which code made something; commit and dirty are null outside a git checkout.

    Attributes:
        dirty: Files of the commit were changed, or there were new ones where code lies.
    """

    version: str
    commit: str | None = None
    dirty: bool | None = None


class BundledResult(_Stored):
    """One result of a bundle, in the words of a table; null where it is not known.

    Attributes:
        folder: Below `results/`.
        label: How people call the experiment.
        reasons: What keeps it from being publishable.
    """

    folder: str
    experiment_id: str
    label: str
    status: str
    publishable: bool
    reasons: list[str]
    backend: str
    framework_version: str | None
    gpu_names: list[str]
    energy_per_output_token_j: float | None
    output_tokens_per_s: float | None
    model: str
    model_revision: str | None
    weights: str | None
    dataset: str | None
    dataset_sha256: str | None
    image_digest: str | None
    wattdock_version: str | None
    wattdock_commit: str | None
    wattdock_dirty: bool | None = None

    @property
    def code(self) -> Code | None:
        """Which code measured it; None where that is not known."""
        if self.wattdock_version is None:
            return None
        return Code(version=self.wattdock_version, commit=self.wattdock_commit, dirty=self.wattdock_dirty)

    def cells(self) -> dict[str, str]:
        """Return what tables for people say of it, by column."""
        figures = {"J/output token": self.energy_per_output_token_j, "tokens/s": self.output_tokens_per_s}
        return {
            "experiment": self.label,
            "status": self.status,
            "model": self.model,
            "revision": (self.model_revision or "unknown")[:24],
            "weights": self.weights or "unknown",
            "ran on": f"{len(self.gpu_names)} × {self.gpu_names[0]}" if self.gpu_names else "CPU",
            **{name: "not measured" if value is None else f"{value:.4g}" for name, value in figures.items()},
            "publishable": "yes" if self.publishable else "no",
        }


class Replaced(_Stored):
    """Something private that stands in the bundle as `stand_in`.

    Attributes:
        kind: "user", "host", "home" or "secret".
        times: How often it stood in the files.
    """

    kind: str
    stand_in: str
    times: int


class BundleManifest(_Stored):
    """bundle.json.

    Attributes:
        title: For people; null in bundles from before it was stored here.
        code: The code that made the bundle; what measured stands in each result.
        prompt_files: Hash of a prompt file → its place in the bundle.
        missing: What would belong in the bundle and could not be had, in words.
        names_kept: Whether names were left as they were, as asked for.
    """

    schema_version: Literal[1] = BUNDLE_SCHEMA
    name: str
    title: str | None = None
    created_utc: str
    code: Code
    results: list[BundledResult] = Field(min_length=1)
    studies: list[str] = Field(default_factory=list)
    prompt_files: dict[str, str] = Field(default_factory=dict)
    missing: list[str] = Field(default_factory=list)
    names_kept: bool = False
    replaced: list[Replaced] = Field(default_factory=list)


def bundled(folder: str, result: ExperimentResult) -> BundledResult:
    """Return what the manifest says of a result."""
    seen, config = result.environment, result.config
    given = config["model"]
    model = seen.model.name if seen else given.get("id") or given.get("shape") or str(given.get("path"))
    return BundledResult(
        folder=folder,
        experiment_id=result.experiment_id,
        label=label_of(config),
        status=result.status,
        publishable=bool(result.audit and result.audit.publishable),
        reasons=result.audit.reasons if result.audit else ["no audit"],
        backend=config["backend"],
        framework_version=seen.framework_version if seen else None,
        gpu_names=seen.gpu_names if seen else [],
        energy_per_output_token_j=result.energy.energy_per_output_token_j if result.energy else None,
        output_tokens_per_s=result.performance.output_tokens_per_s if result.performance else None,
        model=model,
        model_revision=seen.model.revision if seen else given.get("revision"),
        weights=seen.model.weights if seen else None,
        dataset=seen.dataset if seen else None,
        dataset_sha256=seen.dataset_sha256 if seen else None,
        image_digest=seen.image_digest if seen else None,
        wattdock_version=seen.wattdock_version if seen else None,
        wattdock_commit=seen.wattdock_commit if seen else None,
        wattdock_dirty=seen.wattdock_dirty if seen else None,
    )


def label_of(config: dict[str, Any]) -> str:
    """Return how people call an experiment."""
    return str(config.get("name") or f"{config['backend']} batch {config['workload']['batch_size']}")


def is_safe(name: str) -> bool:
    """Whether a file's name, parts joined by "/", stays inside the bundle on every system."""
    return all(SAFE_PART.fullmatch(part) for part in name.split("/"))


def sums_text(digests: Mapping[str, str]) -> str:
    """Return the content of SHA256SUMS, as `sha256sum -c` reads it, for file name → 64 hexadecimal digits."""
    return "".join(f"{digests[name]}  {name}\n" for name in sorted(digests) if name != SUMS)


def require_equal(sums: str, digests: Mapping[str, str]) -> None:
    """See that the files that are there are the files listed.

    Args:
        sums: Content of SHA256SUMS.
        digests: Of every file that is there.

    Raises:
        StoreError: One is missing, was added or was changed; or the list itself was.
    """
    listed = {}
    for number, line in enumerate(sums.splitlines(), start=1):
        if not (found := SUM_LINE.fullmatch(line)):
            raise StoreError(f"{SUMS}:{number}: {line[:80]!r} is no line of a checksum list; it was changed")
        listed[found[2]] = found[1]
    there = {name: digest for name, digest in digests.items() if name != SUMS}
    wrong = {
        "missing": sorted(listed.keys() - there.keys()),
        "not in the list": sorted(there.keys() - listed.keys()),
        "changed": sorted(name for name in listed.keys() & there.keys() if listed[name] != there[name]),
    }
    if said := [f"{what}: {_some(names)}" for what, names in wrong.items() if names]:
        raise StoreError(f"not as it was bundled: {'; '.join(said)}; get it again from its source")
    if sums != sums_text(there):
        raise StoreError(f"{SUMS} is not as it was written; get the bundle again from its source")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(repr(name)[1:-1] for name in names[:SHOWN]) + more
