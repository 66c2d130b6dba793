"""QoS policy of users, their priority and quota: the policy of ``--qos-config-path``.

The file is LMDeploy's: groups of users from the most to the least important, and for each user the share of its group's
requests it may have open. On a server with API keys, each user also names the keys that may speak for it::

    {"enable_user_qos": true,
     "max_requests": 64,
     "user_groups": ["Platinum", "Gold"],
     "user_group_map": {"Platinum": [{"id": "ann", "quota_pct": 100, "api_keys": ["sk-ann"]}],
                        "Gold": [{"id": "bob", "quota_pct": 50, "api_keys": ["sk-bob"]},
                                 {"id": "default", "quota_pct": 25}]}}

The API key then says who the user is; of several users with one key (a front end's), the ``user`` of the request says
which. Without API keys ``user`` alone says it, and callers are trusted. All others share the entry
``default``; without one they are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openai_gateway.errors import ApiError

DEFAULT_USER = "default"
_DEFAULT_REQUESTS = 256


class QosConfigError(ValueError):
    """The policy file is unusable; the text says why."""


class _User(BaseModel):
    id: str
    quota_pct: Annotated[float, Field(ge=0, le=100)]
    api_keys: list[str] = []


class _Policy(BaseModel):
    model_config = ConfigDict(extra="ignore")

    enable_user_qos: bool = True
    max_requests: Annotated[int, Field(ge=1)] = _DEFAULT_REQUESTS
    user_groups: list[str]
    user_group_map: dict[str, list[_User]]

    def users(self) -> list[_User]:
        return [user for group in self.user_group_map.values() for user in group]


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that may run."""

    priority: int  # for the engine: lower numbers go first
    release: Callable[[], None]  # to call once, when the request is over


@dataclass(frozen=True, slots=True)
class _Limit:
    priority: int
    max_open: int


class Qos:
    """A policy, and the requests that are open under it in this process."""

    def __init__(self, policy: _Policy, has_keys: bool) -> None:
        self._enabled = policy.enable_user_qos
        self._limits = {
            user.id: _Limit(rank, max(1, int(policy.max_requests * user.quota_pct / 100)) if user.quota_pct else 0)
            for rank, group in enumerate(policy.user_groups)
            for user in policy.user_group_map.get(group, [])
        }
        self._open: Counter[str] = Counter()
        self._users_of_key: dict[str, list[str]] | None = {} if has_keys else None
        if self._users_of_key is not None:
            for user in policy.users():
                for key in user.api_keys:
                    self._users_of_key.setdefault(key, []).append(user.id)

    @classmethod
    def load(cls, path: Path, api_keys: Sequence[str] = ()) -> Qos:
        """Read a policy file; raise `QosConfigError` if it cannot be read, or is no policy.

        ``api_keys``: those of the server; empty: callers need none.
        """
        try:
            policy = _Policy.model_validate_json(path.read_bytes())
        except OSError as error:
            raise QosConfigError(f"QoS policy {path} cannot be read: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise QosConfigError(f"QoS policy {path}: {where or 'the file'}: {first['msg']}") from None
        unknown = set(policy.user_group_map) - set(policy.user_groups)
        if unknown:
            raise QosConfigError(f"QoS policy {path}: user_group_map has groups not in user_groups: {sorted(unknown)}")
        if policy.enable_user_qos:
            for user in policy.users():
                if problem := _problem_of_keys(user, api_keys):
                    raise QosConfigError(f"QoS policy {path}: {problem}")
        return cls(policy, bool(api_keys))

    def admit(self, user: str | None, *keys: str | None, counts: bool = True) -> Admission:
        """Count a request as open.

        Raises `ApiError` if the user is unknown, or has its quota of requests open. ``user``: who the request says it
        is from. ``keys``: the caller's API keys, of which the first one that the policy knows counts; none: the server
        has none. ``counts``: False: it is let through in addition to the quota.
        """
        if not self._enabled:
            return Admission(0, lambda: None)
        name = self._name(user, keys)
        limit = self._limits.get(name)
        if limit is None or limit.max_open == 0:
            how = "set user" if self._users_of_key is None else "this API key speaks for none of them"
            raise ApiError(403, f"This server only serves users of its QoS policy; {how}.", param="user")
        if not counts:
            return Admission(limit.priority, lambda: None)
        if self._open[name] >= limit.max_open:
            message = f"The user has {limit.max_open} requests open, which is all its quota allows; try again later."
            raise ApiError(429, message, param="user", code="rate_limit_exceeded")
        self._open[name] += 1
        return Admission(limit.priority, lambda: self._release(name))

    def _name(self, user: str | None, keys: Sequence[str | None]) -> str:
        if self._users_of_key is None:
            return user if user is not None and user in self._limits else DEFAULT_USER
        users = next((self._users_of_key[key] for key in keys if key in self._users_of_key), [])
        if len(users) == 1:
            return users[0]
        return user if user is not None and user in users else DEFAULT_USER

    def _release(self, name: str) -> None:
        self._open[name] -= 1


def _problem_of_keys(user: _User, api_keys: Sequence[str]) -> str | None:
    """Return why it would not be known who a user is."""
    if not api_keys and user.api_keys:
        return f"the user {user.id} has api_keys, but the server has none; start it with --api-keys"
    if api_keys and not user.api_keys and user.id != DEFAULT_USER:
        return (
            f"the user {user.id} needs api_keys, those of --api-keys that speak for it: any caller could claim to be it"
        )
    if not set(user.api_keys) <= set(api_keys):
        return f"the user {user.id} has api_keys that are not among --api-keys"
    return None
