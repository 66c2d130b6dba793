"""Who goes first, and how much at a time: the policy of ``--qos-config-path``.

The file is LMDeploy's: groups of users from the most to the least important, and for each user the share of its group's
requests it may have open::

    {"enable_user_qos": true,
     "max_requests": 64,
     "user_groups": ["Platinum", "Gold"],
     "user_group_map": {"Platinum": [{"id": "ann", "quota_pct": 100}],
                        "Gold": [{"id": "bob", "quota_pct": 50}, {"id": "default", "quota_pct": 25}]}}

A user is the ``user`` of a request. Unknown users share the entry ``default``; without one they are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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


class _Policy(BaseModel):
    model_config = ConfigDict(extra="ignore")

    enable_user_qos: bool = True
    max_requests: Annotated[int, Field(ge=1)] = _DEFAULT_REQUESTS
    user_groups: list[str]
    user_group_map: dict[str, list[_User]]


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that may run.

    Attributes
    ----------
    priority : int
        For the engine: lower numbers go first.
    release : callable
        To call once, when the request is over.
    """

    priority: int
    release: Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Limit:
    priority: int
    most_open: int


class Qos:
    """A policy, and the requests that are open under it in this process."""

    def __init__(self, policy: _Policy) -> None:
        self._enabled = policy.enable_user_qos
        self._limits = {
            user.id: _Limit(rank, max(1, int(policy.max_requests * user.quota_pct / 100)) if user.quota_pct else 0)
            for rank, group in enumerate(policy.user_groups)
            for user in policy.user_group_map.get(group, [])
        }
        self._open: Counter[str] = Counter()

    @classmethod
    def load(cls, path: Path) -> Qos:
        """Read a policy file.

        Raises
        ------
        QosConfigError
            It cannot be read, or is no policy.
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
        return cls(policy)

    def admit(self, user: str | None, *, counts: bool = True) -> Admission:
        """Count a request of `user` as open; one that does not count is let through beside the quota.

        Raises
        ------
        ApiError
            The user is unknown, or has its quota of requests open.
        """
        if not self._enabled:
            return Admission(0, lambda: None)
        name = user if user in self._limits and user is not None else DEFAULT_USER
        limit = self._limits.get(name)
        if limit is None or limit.most_open == 0:
            raise ApiError(403, "This server only serves users of its QoS policy; set user.", param="user")
        if not counts:
            return Admission(limit.priority, lambda: None)
        if self._open[name] >= limit.most_open:
            message = f"The user has {limit.most_open} requests open, which is all its quota allows; try again later."
            raise ApiError(429, message, param="user", code="rate_limit_exceeded")
        self._open[name] += 1
        return Admission(limit.priority, lambda: self._release(name))

    def _release(self, name: str) -> None:
        self._open[name] -= 1
