"""Files of other machines, by `fsspec`: read by ranges, written whole; what fails for a moment is tried again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import re
import time
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from onnxq.errors import BadData, BadModel, BadOutput, MissingRuntime, OnnxqError, first_line
from onnxq.files import cache

T = TypeVar("T")

_ALIASES = {"gcs": "gs", "abfs": "az"}
#: Kinds of places. `file://` is a path of this machine, `memory://` this process.
SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "http", "https", "file", "memory")
#: How often something is tried, and seconds before the second time; twice as many before each further one.
ATTEMPTS, PAUSE = 5, 0.2
#: Seconds after which a web server that sends nothing is given up, each time.
STALL = 60.0
#: Tries of S3's own library in each of ours, and of what lies around that: five of each would be 125, of minutes each.
S3_TRIES = 2
#: Bytes of one reading.
CHUNK = 16 << 20
_URL = re.compile(rf"({'|'.join(SCHEMES)})://", re.IGNORECASE)
#: What S3 says of a file that should have been new.
_NOT_NEW = re.compile("FileExists|PreconditionFailed|ConditionalRequestConflict|pre-?conditions", re.IGNORECASE)
#: What stores like S3, and older libraries for it, say that know no condition for that.
_NO_CONDITION = re.compile("not ?implemented|If-?None-?Match|unexpected keyword", re.IGNORECASE)
_GIVEN = re.compile(rf"((?:[^?]*=)?(?:{'|'.join(SCHEMES)})://)(.*)", re.IGNORECASE | re.DOTALL)


class Known(NamedTuple):
    """What a store says of a file.

    Attributes:
        size: bytes.
        version: another one, once it was changed; empty where the store does not say.
    """

    size: int
    version: str


def path_here(url: str) -> Path | None:
    """The path that an address of this machine (`file://`) is; None: it is of a store."""
    return Path(os.path.abspath(url[len("file://") :])) if url.lower().startswith("file://") else None


def canonical(url: str) -> str:
    """One address for all spellings of a place: kinds of stores have two names, and some paths several forms."""
    kind = url.partition("://")[0].lower()
    return url if is_http(url) else f"{_ALIASES.get(kind, kind)}://{_path(url)}"


def is_url(place: object) -> bool:
    """Whether it names a file of a store, and not of this machine's folders."""
    return isinstance(place, str) and _URL.match(place) is not None


def forget(url: str) -> None:
    """Have its store asked anew what is there: fsspec remembers lists of folders for as long as a process lives."""
    _fs(url).invalidate_cache()


def known(url: str, error: type[OnnxqError] = BadModel) -> Known:
    """
    Raises:
        the given kind of error: there is no such file (its cause is a FileNotFoundError), it may not be read, or the
            store does not say how long it is.
    """
    found = _tried(url, error, lambda: _fs(url).info(_path(url)))
    if found.get("type", "file") != "file" or not isinstance(found.get("size"), int):
        raise error(f"'{url}' is not a file whose length is known")
    return _known(found)


def _known(found: Mapping[str, Any]) -> Known:
    words = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "Last-Modified")
    version = next((str(found[word]) for word in words if found.get(word)), "")
    return Known(int(found["size"]), version.strip('"'))


def exists(url: str) -> bool:
    """
    Raises:
        BadOutput: nobody can tell.
    """
    if not is_http(url):
        return bool(_tried(url, BadOutput, lambda: _fs(url).exists(_path(url))))
    try:  # of a server that does not answer, its `exists` says that the file is not there
        _tried(url, BadOutput, lambda: _fs(url).info(_path(url)))
    except BadOutput as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise
    return True


def is_folder(url: str, error: type[OnnxqError] = BadData) -> bool:
    """
    Raises:
        the given kind of error: nobody can tell.
    """
    return not is_http(url) and bool(_tried(url, error, lambda: _fs(url).isdir(_path(url))))


def files_in(url: str, error: type[OnnxqError] = BadData) -> dict[str, str]:
    """The addresses of all files in a folder and below it, by their paths in it.

    Raises:
        the given kind of error: they cannot be listed.
    """
    fs, folder = _fs(url), _path(url).rstrip("/") + "/"
    found = _tried(url, error, lambda: fs.find(_path(url)))
    # Not by the addresses themselves, which may begin with another of the store's names.
    return {path.removeprefix(folder): fs.unstrip_protocol(path) for path in found}


def read(url: str, start: int, stop: int, error: type[OnnxqError] = BadModel) -> bytes:
    """The bytes from `start` to before `stop`.

    Raises:
        the given kind of error: they cannot be read, or are fewer.
    """

    def attempt() -> bytes:
        found = _range(url, start, stop)
        if len(found) != stop - start:
            raise OSError(f"{len(found)} bytes came, not {stop - start}")
        return found

    return _tried(url, error, attempt) if stop > start else b""


def fetch(url: str, known: Known, start: int, stop: int, error: type[OnnxqError] = BadModel) -> bytes:
    """A range of a file as it was when `known` was asked for; from this user's cache, if it is there.

    Raises:
        the given kind of error: it cannot be read.
    """
    kept = cache.usual()
    name = hashlib.blake2b(f"{url} {known} {start} {stop}".encode(), digest_size=20).hexdigest()
    found = kept.get(name) if known.version else None
    if found is None or len(found) != stop - start:
        found = read(url, start, stop, error)
        if known.version and not url.startswith("memory:"):
            kept.put(name, found)
    return found


def _range(url: str, start: int, stop: int) -> bytes:
    fs = _fs(url)
    if not is_http(url):
        return bytes(fs.cat_file(_path(url), start=start, end=stop))
    # Unlike `cat_file`, this reads no more of a server that answers with all of a file.
    with fs.open(_path(url), "rb", block_size=CHUNK, cache_type="none", size=stop) as file:
        file.seek(start)
        return bytes(file.read(stop - start))


def write(local: Path, url: str, *, replace: bool = True) -> Known:
    """Put a whole file there; until all of it is there, the old one is. What the store says of it.

    Raises:
        BadOutput: it cannot be written, or another one is there and `replace` is off.
    """

    def attempt() -> Known:
        fs, path = _fs(url), _path(url)
        if replace:
            fs.put_file(str(local), path)
        else:
            _put_new(fs, local, path, url)
        fs.invalidate_cache()
        there = fs.info(path)
        if there.get("size") != local.stat().st_size:
            raise OSError(f"{there.get('size')} bytes are there, not {local.stat().st_size}")
        return _known(there)

    return _tried(url, BadOutput, attempt)


def _put_new(fs: Any, local: Path, path: str, url: str) -> None:
    """Put a file where none is, or one that is the same: one's own, of which no answer came, or somebody else's.

    Of two that do so at once S3 lets one; other stores may let both, if each asks before the other has sent all.
    """
    fs.invalidate_cache()
    is_there = fs.exists(path)
    if not is_there:
        try:
            fs.put_file(str(local), path, **({"mode": "create"} if url.startswith("s3:") else {}))
        except Exception as why:
            said = f"{type(why).__name__} {why}"
            is_there = _NOT_NEW.search(said) is not None
            if not is_there and not _NO_CONDITION.search(said):
                raise
            if not is_there:
                fs.put_file(str(local), path)
    if is_there and not _is_same(fs, local, path):
        raise BadOutput(f"'{url}' came into being meanwhile; give --force to replace it, or another name")


def _is_same(fs: Any, local: Path, path: str) -> bool:
    size = local.stat().st_size
    if fs.info(path).get("size") != size:
        return False
    with local.open("rb") as file:
        return all(file.read(CHUNK) == fs.cat_file(path, at, min(at + CHUNK, size)) for at in range(0, size, CHUNK))


def holds(url: str, local: Path) -> bool:
    """Whether the file there has the bytes of one here.

    Raises:
        BadOutput: nobody can tell.
    """
    return _tried(url, BadOutput, lambda: _is_same(_fs(url), local, _path(url)))


def remove(url: str) -> None:
    """Have a file there no more.

    Raises:
        BadOutput: it cannot be removed.
    """

    def attempt() -> None:
        fs = _fs(url)
        with contextlib.suppress(FileNotFoundError):  # somebody else was faster
            fs.rm_file(_path(url))
        fs.invalidate_cache()

    _tried(url, BadOutput, attempt)


def beside(url: str, name: str) -> str:
    """The address of a file in the same folder."""
    address, mark, query = url.partition("?")
    if is_http(url):
        name = urllib.parse.quote(name)
    kind, slashes, path = address.partition("://")  # of `memory://file` no folder is named
    return kind + slashes + posixpath.join(posixpath.dirname(path), name) + mark + query


def inside(url: str, name: str) -> str:
    """The address of a file in a folder; of the folder itself, if that is called `.`."""
    return url if name == "." else f"{url.rstrip('/')}/{name}"


def without_secrets(word: str) -> str:
    """A word of a command line; of an address without what gives access: a user, and what comes after `?`."""
    found = _GIVEN.fullmatch(word)
    if found is None:
        return word
    place, slash, path = found[2].partition("?")[0].partition("/")
    return f"{found[1]}{place.rpartition('@')[2]}{slash}{path}"


def is_http(url: str) -> bool:
    """Whether it is of a web server, which tells of single files only."""
    return url.lower().startswith(("http://", "https://"))


def _fs(url: str) -> Any:
    try:
        import fsspec
    except ImportError:
        raise MissingRuntime(f"'{url}' needs fsspec: pip install 'onnxq[cluster]'") from None
    except Exception as error:  # it reads its settings
        raise MissingRuntime(f"'{url}' needs fsspec, whose settings cannot be read: {first_line(error)}") from None
    scheme = url.partition("://")[0].lower()
    if "::" in url or scheme not in SCHEMES:
        raise BadModel(f"'{url}' is not an address that onnxq reads; it knows {', '.join(SCHEMES)}")
    try:
        fs = fsspec.filesystem("gcs" if scheme == "gs" else scheme, **_patience(fsspec, scheme))
        if scheme == "s3":
            fs.retries = 1
        return fs
    except (ImportError, ValueError) as error:
        raise MissingRuntime(f"'{url}' needs another package: {first_line(error)}") from None
    except (TypeError, AttributeError, KeyError) as error:
        raise MissingRuntime(f"fsspec's settings for {scheme} are not what it takes: {first_line(error)}") from None


def _patience(fsspec: Any, scheme: str) -> dict[str, Any]:
    """As long as bytes come, a web server may be slow; S3 is tried as often as others. Settings of the user's hold."""
    own = fsspec.config.conf.get(scheme, {})
    if scheme == "s3":
        return {"config_kwargs": {"retries": {"total_max_attempts": S3_TRIES}, **own.get("config_kwargs", {})}}
    if scheme not in ("http", "https"):
        return {}
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=STALL, sock_read=STALL)
    return {"client_kwargs": {"timeout": timeout, **own.get("client_kwargs", {})}}


def _path(url: str) -> str:
    kind, mark, rest = url.partition("://")  # of which fsspec knows small letters
    return str(_fs(url)._strip_protocol(kind.lower() + mark + rest))


def _tried(url: str, error: type[OnnxqError], attempt: Callable[[], T]) -> T:
    """What `attempt` gives, which may fail a few times."""
    pause = PAUSE
    for left in reversed(range(ATTEMPTS)):
        try:
            return attempt()
        except OnnxqError:
            raise
        except FileNotFoundError as why:
            _require_allowed(url, error, why.__cause__)
            if why.__cause__ is None or isinstance(why.__cause__, FileNotFoundError):
                raise error(f"'{url}': no such file") from FileNotFoundError(url)
            if not left:  # what fsspec says of a machine that does not answer, too
                raise error(_unreachable(url, why.__cause__)) from None
        except PermissionError as why:
            raise error(f"'{url}' may not be used: {first_line(why)}; see to the credentials for it") from None
        except Exception as why:  # each store has a dozen kinds of its own
            _require_allowed(url, error, why)
            if "support range requests" in str(why):
                raise error(
                    f"the server of '{url}' gives whole files only, and onnxq reads parts of it: fetch the model with "
                    "its data, and give the path here"
                ) from None
            if "Credentials" in type(why).__name__ or "credentials" in str(why).lower():
                raise error(f"there are no credentials for '{url}': set them as for that store's own tools") from None
            if isinstance(why, TypeError):  # of a setting that is none, which no pause mends
                raise error(f"'{url}' cannot be used with fsspec's settings: {first_line(why)}") from None
            if not left:
                raise error(_unreachable(url, why)) from None
        time.sleep(pause)
        pause *= 2
    raise AssertionError


def _require_allowed(url: str, error: type[OnnxqError], why: BaseException | None) -> None:
    """
    Raises:
        the given kind of error: a web server says that there is no such file, or that it is not for us.
    """
    status = getattr(why, "status", None)
    if status in (404, 410):
        raise error(f"'{url}': no such file") from FileNotFoundError(url)
    if status in (401, 403, 407):
        raise error(f"'{url}' may not be used: the server answers {status}; see to the credentials for it") from None


def _unreachable(url: str, why: BaseException) -> str:
    return f"'{url}' cannot be reached, tried {ATTEMPTS} times: {type(why).__name__}: {first_line(why)}"
