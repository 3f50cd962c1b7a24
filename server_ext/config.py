"""What a scheduler policy is, and where its name comes from.

This room turns configuration (``--additional-config '{"radixflow": {...}}'``, or the
``RADIXFLOW_POLICY`` environment variable) into one frozen `Policy`.  It must not
import vLLM: policies are data and are tested in milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "ConfigurationError",
    "Policy",
    "policy_from_config",
]

POLICY_VARIABLE = "RADIXFLOW_POLICY"
"""Environment variable that names the policy where the server's config does not."""


class ConfigurationError(ValueError):
    """The server cannot run as configured; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Policy:
    """When a waiting branch may run.  Never what is computed for it.

    Attributes:
        name: the preset's name.
        traversal: skip a BLOCKED branch for this round and go on with the scan
            (state-ready traversal) instead of ending the round there (prefix-stop).
        readiness: ``exact``: a state published in an earlier round is READY;
            ``native``: what the installed vLLM says (0.32.0 has false dependencies).
        hints: use the shared boundary that hinted requests carry.
    """

    name: str
    traversal: bool
    readiness: Literal["native", "exact"]
    hints: bool

    def as_dict(self) -> dict[str, Any]:
        """The policy as JSON-ready data."""
        return asdict(self)


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("radix", traversal=False, readiness="native", hints=False),
        Policy("radixflow", traversal=True, readiness="exact", hints=True),
    )
}
"""The presets: ``radix`` is the native schedule, ``radixflow`` is ours."""

DEFAULT_POLICY = "radixflow"


def policy_named(name: object) -> Policy:
    """The preset called `name`.

    Raises:
        ConfigurationError: there is no such preset.
    """
    if not isinstance(name, str) or name not in POLICIES:
        raise ConfigurationError(
            f"unknown RadixFlow policy {name!r}: choose one of {', '.join(POLICIES)}"
        )
    return POLICIES[name]


def policy_from_config(
    additional_config: object, environ: Mapping[str, str] | None = None
) -> Policy:
    """Read the policy from vLLM's ``additional_config``, else from the environment.

    Args:
        additional_config: vLLM's value; a mapping with an optional ``radixflow`` key
            that holds ``{"policy": NAME}``.
        environ: environment to read, by default this process's.

    Raises:
        ConfigurationError: an unknown key, or a policy that does not exist.
    """
    environ = os.environ if environ is None else environ
    section: object = {}
    if isinstance(additional_config, Mapping):
        section = additional_config.get("radixflow", {})
    if not isinstance(section, Mapping):
        raise ConfigurationError(
            f"additional_config.radixflow must be an object, got {section!r}"
        )
    unknown = sorted(str(key) for key in section if key != "policy")
    if unknown:
        raise ConfigurationError(
            f"unknown key {unknown[0]!r} in additional_config.radixflow: "
            "the only key is 'policy'"
        )
    return policy_named(
        section.get("policy") or environ.get(POLICY_VARIABLE) or DEFAULT_POLICY
    )
