"""Amazon's own client: how it is made, and what its errors mean."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore import exceptions as boto
from botocore.config import Config

_LOST = (boto.ConnectionError, boto.HTTPClientError, boto.ResponseStreamingError, boto.IncompleteReadError)
_PASSING = frozenset({"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "RequestLimitExceeded"})
"""S3's words for "try again", whatever the status ..."""
_PASSING_STATUS = frozenset({409, 429, 500, 502, 503, 504})
"""... and statuses that mean the same; 409 is that of two conditional writes at the same moment."""
_NESTED = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")
_OPTIONS = ("key", "secret", "token", "profile", "anon", "endpoint_url", "use_ssl", *_NESTED)


def make_client(options: Mapping[str, Any], n_connections: int) -> Any:
    """A client that makes one attempt a request. Options have s3fs's names, and mean the same.

    Raises:
        TypeError, ValueError: options that can't be.
    """
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise TypeError(f"{', '.join(unknown)}; known are {', '.join(_OPTIONS)}")
    arguments, settings = (dict(options.get(name) or {}) for name in ("client_kwargs", "config_kwargs"))
    config = {
        "retries": {"total_max_attempts": 1},  # S3Backend repeats; botocore would draw from python's random numbers
        "connect_timeout": 5,
        "read_timeout": 15,  # well below the patience: a connection that died without a word must not use it up
        "max_pool_connections": n_connections,
        "response_checksum_validation": "when_required",  # every reader compares Heirloom's own digests
        **({"signature_version": UNSIGNED} if options.get("anon") else {}),
        **settings,
    }
    arguments |= {name: options[name] for name in ("endpoint_url", "use_ssl") if options.get(name) is not None}
    try:
        session = boto3.session.Session(
            aws_access_key_id=options.get("key"),
            aws_secret_access_key=options.get("secret"),
            aws_session_token=options.get("token"),
            profile_name=options.get("profile"),
            region_name=arguments.pop("region_name", None),
        )
        return session.client("s3", config=Config(**config), **arguments)
    except boto.BotoCoreError as error:  # an unknown profile, a key without its secret
        raise ValueError(str(error)) from error


def translated(error: Any) -> Exception:
    """Python's own error for a reply that is one, where there is such; else the error itself."""
    code, text = error.response["Error"].get("Code"), str(error)
    if code == "NoSuchBucket":
        return FileNotFoundError(errno.ENOENT, f"there is no such bucket: {text}")
    match status_of(error):
        case 404:
            return FileNotFoundError(errno.ENOENT, text)
        case 401 | 403:
            return PermissionError(errno.EACCES, text)
        case 412:
            return FileExistsError(errno.EEXIST, text)
        case 501:
            return OSError(errno.ENOSYS, text)
    return error if isinstance(error, Exception) else RuntimeError(text)


def status_of(error: Any) -> int:
    """The status of a reply that is an error."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_passing(error: Exception) -> bool:
    """Whether the same request may succeed the next time."""
    if isinstance(error, boto.ClientError):
        return error.response["Error"].get("Code") in _PASSING or status_of(error) in _PASSING_STATUS
    return isinstance(error, _LOST) and not isinstance(error, boto.SSLError)
