"""Amazon's client for S3: its options, and the meaning of its errors."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore import exceptions as boto
from botocore.config import Config

_LOST = (boto.ConnectionError, boto.HTTPClientError, boto.ResponseStreamingError, boto.IncompleteReadError)
_TEMPORARY = frozenset({"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "RequestLimitExceeded"})
"""Codes of S3 that mean "try again"."""
_TEMPORARY_STATUS = frozenset({409, 429, 500, 502, 503, 504})
"""Statuses that mean "try again"; 409 means two conditional writes at the same moment."""
_NESTED = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")
_OPTIONS = ("key", "secret", "token", "profile", "anon", "endpoint_url", "use_ssl", *_NESTED)


def make_client(options: Mapping[str, Any], n_connections: int) -> Any:
    """Returns a client that makes one attempt per request.

    Options have the names and meanings of s3fs's.

    Raises:
        TypeError, ValueError: an option is unknown or invalid.
    """
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise TypeError(f"{', '.join(unknown)}; known are {', '.join(_OPTIONS)}")
    arguments, settings = (dict(options.get(name) or {}) for name in ("client_kwargs", "config_kwargs"))
    config = {
        "retries": {"total_max_attempts": 1},  # S3Backend retries; botocore would draw from Python's random numbers
        "connect_timeout": 5,
        "read_timeout": 15,  # well below retry_s, so that a silent connection does not use it up
        "max_pool_connections": n_connections,
        "response_checksum_validation": "when_required",  # every reader compares Heirloom's digests
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
    """Returns the builtin error that means the same; the error itself if there is none."""
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
    """Returns the HTTP status of an error reply."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_temporary(error: Exception) -> bool:
    """Returns whether the same request may succeed the next time."""
    if isinstance(error, boto.ClientError):
        return error.response["Error"].get("Code") in _TEMPORARY or status_of(error) in _TEMPORARY_STATUS
    return isinstance(error, _LOST) and not isinstance(error, boto.SSLError)
